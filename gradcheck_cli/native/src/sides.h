// Passes over both sides of a Jacobian, the theoretical and the numerical one: what the verdict needs of every entry.
#pragma once

#include <cstdint>

#include "product.h"

namespace gradcheck {

// Rows by columns, the columns side by side, rows some reals apart.
struct Sides {
    const double *given, *right;
    Index rows, columns, given_row, right_row;
};

// The sizes that entries are compared with: the largest of a column or, in a row with a scale, the effect by the scale
// if it is much smaller.  `effect` and `scale` are null if all rows are of one scale.
struct Sizes {
    const double *largest, *effect, *scale;
};

// Raises `largest` to the largest finite magnitude in each column of either side, and `effect`, unless it is null, to
// that of magnitudes times `by` of the row.
void raise_largest(const Sides &sides, const double *by, double *largest, double *effect);

// The errors that pass: slack times the magnitude, which is less than zero, and a share of the size, and an absolute one.
struct Allowed {
    double slack, negligible, atol;
};

// Writes 0 where an entry passes, and elsewhere `open`.
void screen(const Sides &sides, const Sizes &sizes, const Allowed &allowed, std::int8_t open, std::int8_t *status);

// The largest difference, and the largest relative to an entry, which counts as at least the share `ground` of its
// size, or that divided by `floor`.  False if some difference is NaN.
struct Farthest {
    double absolute = 0, relative = 0;
};
bool farthest(const Sides &sides, const Sizes &sizes, double ground, double floor, Farthest &found);

}  // namespace gradcheck
