#include "instruction_set.h"

#include <atomic>

#if defined(GRADCHECK_X86_VARIANTS)
#include <cpuid.h>
#endif

namespace gradcheck {

namespace baseline {
extern const InstructionSet kernels;
}
#if defined(GRADCHECK_X86_VARIANTS)
namespace avx2 {
extern const InstructionSet kernels;
}
namespace avx512 {
extern const InstructionSet kernels;
}
#endif

namespace {

#if defined(GRADCHECK_X86_VARIANTS)

// What the processor has and the operating system saves the registers of.  Asked directly: the compilers' own
// question, __builtin_cpu_supports, does not link on every system.
struct Processor {
    bool avx2 = false, avx512 = false;
};

Processor processor() {
    unsigned a, b, c, d;
    constexpr unsigned with_avx = bit_OSXSAVE | bit_AVX | bit_FMA;
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & with_avx) != with_avx)
        return {};
    unsigned saved, more;
    __asm__("xgetbv" : "=a"(saved), "=d"(more) : "c"(0));
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d))
        return {};
    constexpr unsigned halves = 0x06, wholes = 0xe6;  // of the vector registers, and masks
    constexpr unsigned wide = bit_AVX512F | bit_AVX512VL | bit_AVX512DQ | bit_AVX512BW;
    const bool avx2 = (b & bit_AVX2) != 0 && (saved & halves) == halves;
    return {avx2, avx2 && (b & wide) == wide && (saved & wholes) == wholes};
}

#endif

// What this machine runs, best first.
std::vector<const InstructionSet *> runnable() {
    std::vector<const InstructionSet *> sets;
#if defined(GRADCHECK_X86_VARIANTS)
    const Processor has = processor();
    if (has.avx512)
        sets.push_back(&avx512::kernels);
    if (has.avx2)
        sets.push_back(&avx2::kernels);
#endif
    sets.push_back(&baseline::kernels);
    return sets;
}

std::atomic<const InstructionSet *> &chosen() {
    static std::atomic<const InstructionSet *> set{runnable().front()};
    return set;
}

}  // namespace

const InstructionSet &instruction_set() { return *chosen().load(std::memory_order_relaxed); }

std::vector<std::string> available() {
    std::vector<std::string> names;
    for (const InstructionSet *set : runnable())
        names.emplace_back(set->name);
    return names;
}

bool select_instruction_set(const std::string &name) {
    for (const InstructionSet *set : runnable())
        if (name == set->name) {
            chosen() = set;
            return true;
        }
    return false;
}

}  // namespace gradcheck
