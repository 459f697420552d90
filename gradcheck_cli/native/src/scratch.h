// Buffers of the calling thread that live on from call to call.
#pragma once

#include <cstddef>

namespace gradcheck {

enum class Slot { left, right, narrow, image };

// At least `bytes` bytes, aligned for the widest vector; valid until the same thread asks for the slot again.
void *scratch(Slot slot, std::size_t bytes);

}  // namespace gradcheck
