// The kernels of one instruction set as a table, and the choice among the tables.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "chain.h"
#include "pool.h"
#include "product.h"
#include "recurrence.h"

namespace gradcheck {

template <class T> struct Kernels {
    void (*packed)(const Product<T> &, Span rows, Span columns);
    void (*small)(const SmallProducts<T> &, Index first, Index last);
    void (*dots)(const SmallProducts<T> &, Index first, Index last);
    void (*lines)(const SmallProducts<T> &, Index first, Index last);
    void (*operate)(Operation, T *to, const T *left, const T *right, const T *third, Index count);
    Index lanes;          // of a vector
    Index height, width;  // of a panel of A, of B
};

template <class T> struct Pools {
    PoolKernel<T> maxima, winners, sums, spread;
};

struct InstructionSet {
    const char *name;
    Kernels<float> single;
    Kernels<double> twofold;
    Pools<float> single_pools;
    Pools<double> twofold_pools;
    Pools<std::int8_t> signed_pools;
    Pools<std::uint8_t> unsigned_pools;
    RecurrenceKernels<float> single_recurrences;
    RecurrenceKernels<double> twofold_recurrences;

    template <class T> const Kernels<T> &of() const;
    template <class T> const RecurrenceKernels<T> &recurrences() const;
    template <class T> const Pools<T> &pools() const;
};

template <> inline const Kernels<float> &InstructionSet::of<float>() const { return single; }
template <> inline const Kernels<double> &InstructionSet::of<double>() const { return twofold; }

template <> inline const Pools<float> &InstructionSet::pools<float>() const { return single_pools; }
template <> inline const Pools<double> &InstructionSet::pools<double>() const { return twofold_pools; }
template <> inline const Pools<std::int8_t> &InstructionSet::pools<std::int8_t>() const { return signed_pools; }
template <> inline const Pools<std::uint8_t> &InstructionSet::pools<std::uint8_t>() const { return unsigned_pools; }

template <> inline const RecurrenceKernels<float> &InstructionSet::recurrences<float>() const { return single_recurrences; }
template <> inline const RecurrenceKernels<double> &InstructionSet::recurrences<double>() const { return twofold_recurrences; }

// The set in use: the best that this machine runs, until `select_instruction_set` names another of `available`.
const InstructionSet &instruction_set();
std::vector<std::string> available();
bool select_instruction_set(const std::string &name);

}  // namespace gradcheck
