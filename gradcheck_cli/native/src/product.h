// What a product is: operands as a pointer and tables of offsets.
//
// An element of A lies at a[rows.offset(i) + depth[p]], one of B at b[depth[p] + columns.offset(j)].  A dense
// matrix, its transpose, a stack folded into the rows, the windows of an image and the real view of a complex
// matrix differ in their tables only.  All offsets count real elements.
#pragma once

#include <cstddef>
#include <vector>

namespace gradcheck {

using Index = std::ptrdiff_t;

struct Span {
    Index first, last;
};

// Positions along rows or columns: `table` repeated every `inner` of them, `outer` apart.
struct Axis {
    Index count, inner;
    const Index *table;
    Index outer;

    void offsets(Index first, Index last, Index *out) const {
        Index turn = first / inner, at = first % inner;
        for (Index i = first; i < last; ++i) {
            *out++ = turn * outer + table[at];
            if (++at == inner) {
                at = 0;
                ++turn;
            }
        }
    }
};

// C = A B, all of C overwritten; `rotated` when B is complex and each of its rows stands for two real ones.
template <class T> struct Product {
    Index depth;
    const T *a;
    Axis a_rows;
    const Index *a_depth;
    const T *b;
    const Index *b_depth;
    Axis b_columns;
    T *c;
    Axis c_rows, c_columns;
    bool rotated;
};

// One axis over which products are repeated; 0 where an operand does not move.
struct BatchAxis {
    Index count, a, b, c;
};

// How B reaches the unpacked kernel: as it lies, copied row by row, or spread from complex or real to pairs.
enum class Spread { none, copied, rotated, widened };

// A stack of small products with plain strides.  For the kernel that works in place, C has unit columns, and so
// has B unless it is spread; for dot products, A and B run along the depth by ones.
template <class T> struct SmallProducts {
    Index m, n, depth;
    const T *a;
    Index a_row, a_depth;
    const T *b;
    Index b_depth, b_column;
    T *c;
    Index c_row, c_column;
    Spread spread;
    std::vector<BatchAxis> batch;
};

// Offsets of one product of a stack.
struct Place {
    Index a = 0, b = 0, c = 0;
};

inline Place place(const BatchAxis *axes, Index rank, Index i) {
    Place at;
    for (Index axis = rank; axis-- > 0;) {
        const BatchAxis &step = axes[axis];
        const Index turn = i % step.count;
        i /= step.count;
        at.a += turn * step.a;
        at.b += turn * step.b;
        at.c += turn * step.c;
    }
    return at;
}

inline Index count(const std::vector<BatchAxis> &axes) {
    Index total = 1;
    for (const BatchAxis &axis : axes)
        total *= axis.count;
    return total;
}

}  // namespace gradcheck
