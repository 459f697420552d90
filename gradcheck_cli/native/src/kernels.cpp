// The kernels, compiled once for each instruction set; GRADCHECK_ISA is its name.
#include "dot_products.h"
#include "elementwise.h"
#include "instruction_set.h"
#include "line_products.h"
#include "loop_nest.h"
#include "pooling.h"
#include "recurrent_steps.h"
#include "small_products.h"

#define GRADCHECK_TEXT_OF(name) #name
#define GRADCHECK_TEXT(name) GRADCHECK_TEXT_OF(name)

namespace gradcheck::GRADCHECK_ISA {

template <class T> constexpr Kernels<T> table() {
    return {multiply_packed<T>, multiply_small<T>, multiply_dots<T>, multiply_lines<T>, operate<T>, lanes<T>, Blocks<T>::height, Blocks<T>::width};
}

template <class T> constexpr Pools<T> pools() { return {max_windows<T>, find_winners<T>, sum_windows<T>, spread_windows<T>}; }

template <class T> constexpr RecurrenceKernels<T> recurrences() {
    return {pack_rows<T>, push_task<T>, pull_task<T>, task_probes<T>};
}

extern const InstructionSet kernels;
const InstructionSet kernels = {GRADCHECK_TEXT(GRADCHECK_ISA), table<float>(), table<double>(), pools<float>(),
                                pools<double>(), pools<std::int8_t>(), pools<std::uint8_t>(),
                                recurrences<float>(), recurrences<double>()};

}  // namespace gradcheck::GRADCHECK_ISA
