#include "instruction_set.h"

#include <atomic>

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

// What this machine runs, best first.
std::vector<const InstructionSet *> runnable() {
    std::vector<const InstructionSet *> sets;
#if defined(GRADCHECK_X86_VARIANTS)
    __builtin_cpu_init();
    const bool fused = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (fused && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        sets.push_back(&avx512::kernels);
    if (fused)
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
