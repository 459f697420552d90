// Elementwise chains: operations one after the other over operands that broadcast, block by block, so that what lies
// between operands and results stays in the cache.  Each operation rounds for itself: results are those of the
// operations run one by one over whole arrays, bit for bit.
#pragma once

#include <cstdint>
#include <vector>

#include "view.h"

namespace gradcheck {

// `larger` and `smaller` take the number where the other operand is NaN; `less` gives 1 or 0; `select` takes `left` where
// `third` is not 0, else `right`.
enum class Operation : std::uint8_t {
    copy, negate, magnitude, root, add, subtract, multiply, divide, larger, smaller, less, select
};
constexpr int operations = 12;

// Values go by number: operands first, then results, then what nobody sees.
struct Instruction {
    Operation operation;
    std::uint8_t to, left, right, third;
};

struct Chain {
    std::vector<Instruction> code;
    std::vector<View> arrays;  // operands, then results: dense and of one shape, over which the operands broadcast
    Index operands, hidden;    // how many arrays are operands, and how many values are no arrays

    Index values() const { return static_cast<Index>(arrays.size()) + hidden; }
};

// What is wrong with a chain: empty if it can be run.
const char *flaw(const Chain &chain);

template <class T> void run(const Chain &chain);

}  // namespace gradcheck
