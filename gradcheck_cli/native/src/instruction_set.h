// The kernels of one instruction set as a table, and the choice among the tables.
#pragma once

#include <string>
#include <vector>

#include "product.h"

namespace gradcheck {

template <class T> struct Kernels {
    void (*packed)(const Product<T> &, Span rows, Span columns);
    void (*small)(const SmallProducts<T> &, Index first, Index last);
    void (*dots)(const SmallProducts<T> &, Index first, Index last);
    Index lanes;          // of a vector
    Index height, width;  // of a panel of A, of B
};

struct InstructionSet {
    const char *name;
    Kernels<float> single;
    Kernels<double> twofold;

    template <class T> const Kernels<T> &of() const;
};

template <> inline const Kernels<float> &InstructionSet::of<float>() const { return single; }
template <> inline const Kernels<double> &InstructionSet::of<double>() const { return twofold; }

// The set in use: the best that this machine runs, until `select_instruction_set` names another of `available`.
const InstructionSet &instruction_set();
std::vector<std::string> available();
bool select_instruction_set(const std::string &name);

}  // namespace gradcheck
