#include "scratch.h"

#include <memory>
#include <new>

namespace gradcheck {
namespace {

constexpr std::align_val_t alignment{64};

struct Release {
    void operator()(void *memory) const { ::operator delete(memory, alignment); }
};

struct Buffer {
    std::unique_ptr<void, Release> memory;
    std::size_t size = 0;
};

thread_local Buffer buffers[4];

}  // namespace

void *scratch(Slot slot, std::size_t bytes) {
    Buffer &buffer = buffers[static_cast<int>(slot)];
    if (buffer.size < bytes) {
        buffer.memory.reset();
        buffer.size = 0;
        buffer.memory.reset(::operator new(bytes, alignment));
        buffer.size = bytes;
    }
    return buffer.memory.get();
}

}  // namespace gradcheck
