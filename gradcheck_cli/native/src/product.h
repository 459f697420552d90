// What a product is: operands as a pointer and tables of offsets.
//
// An element of A lies at a[rows.offset(i) + depth[p]], one of B at b[depth[p] + columns.offset(j)].  A dense
// matrix, its transpose, a stack folded into the rows, the windows of an image and the real view of a complex
// matrix differ in their tables only.  All offsets count real elements.
#pragma once

#include <cstddef>

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
};

// The numbers of an operand: of the type T of the product, or floats that are widened as they are read.
template <class T> struct Numbers {
    const void *at;
    bool narrow;

    const T *wide() const { return static_cast<const T *>(at); }
    const float *single() const { return static_cast<const float *>(at); }
    Numbers moved(Index numbers) const {
        return {static_cast<const char *>(at) + numbers * static_cast<Index>(narrow ? sizeof(float) : sizeof(T)), narrow};
    }
};

// How sums become C.  A complex A is two real rows for each of its own, the real parts and the imaginary ones: their
// sums with a complex B (pairs of columns) are a complex row by i times the second, those with a real B its two parts.
enum class Join { none, complex, parts };

// C = A B, all of C overwritten.
template <class T> struct Product {
    Index depth;
    Numbers<T> a;
    Axis a_rows;
    const Index *a_depth;
    Numbers<T> b;
    const Index *b_depth;
    Axis b_columns;
    T *c;
    Axis c_rows, c_columns;
    Join join;
};

// One axis over which products are repeated; 0 where an operand does not move.
struct BatchAxis {
    Index count, a, b, c;
};

// A stack of `count` small products, of which only lines and dot products take a narrow B.  For the kernel that works in place, C has unit columns, and so has B unless
// it is to be copied first; the steps of the depth lie a stride apart, or where `a_lines` and `b_lines` say.  For dot
// products, A and B run along the depth by ones.  Sizes count sums: m and n those of real rows and columns.
template <class T> struct SmallProducts {
    Index m, n, depth;
    const T *a;
    Index a_row, a_depth;
    Numbers<T> b;
    Index b_depth, b_column;
    const Index *a_lines, *b_lines;
    T *c;
    Index c_row, c_column;
    Index b_unit;  // reals side by side in B, if it is to be copied; else 0
    Join join;
    const BatchAxis *batch;
    Index batch_rank, count;
};

// Offsets of one product of a stack.
struct Place {
    Index a, b, c;
};

// Functions of this header have internal linkage: files that include it are compiled for different instruction
// sets, and the linker must not let one use the code of another.
static inline Place place(const BatchAxis *axes, Index rank, Index i) {
    Place at = {0, 0, 0};
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

// Calls body(place) for products [first, last).
template <class Body> static inline void for_places(const BatchAxis *axes, Index rank, Index first, Index last, const Body &body) {
    const BatchAxis step = rank > 0 ? axes[rank - 1] : BatchAxis{1, 0, 0, 0};
    while (first < last) {
        Place at = place(axes, rank, first);
        Index left = step.count - first % step.count;
        for (; left > 0 && first < last; --left, ++first) {
            body(at);
            at.a += step.a;
            at.b += step.b;
            at.c += step.c;
        }
    }
}

}  // namespace gradcheck
