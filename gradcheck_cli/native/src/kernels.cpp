// The kernels, compiled once for each instruction set; GRADCHECK_ISA is its name.
#include "dot_products.h"
#include "instruction_set.h"
#include "loop_nest.h"
#include "small_products.h"

#define GRADCHECK_TEXT_OF(name) #name
#define GRADCHECK_TEXT(name) GRADCHECK_TEXT_OF(name)

namespace gradcheck::GRADCHECK_ISA {

template <class T> constexpr Kernels<T> table() {
    return {multiply_packed<T>, multiply_small<T>, multiply_dots<T>, lanes<T>, Blocks<T>::height, Blocks<T>::width};
}

extern const InstructionSet kernels;
const InstructionSet kernels = {GRADCHECK_TEXT(GRADCHECK_ISA), table<float>(), table<double>()};

}  // namespace gradcheck::GRADCHECK_ISA
