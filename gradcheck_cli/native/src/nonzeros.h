// Places of a Jacobian that may differ from zero, in the order of its rows: colors of rows, and the order of columns.
#pragma once

#include <cstdint>

#include "product.h"

namespace gradcheck {

// The columns of row i are column[starts[i]], ..., column[starts[i + 1] - 1].
struct Nonzeros {
    const std::int64_t *starts;
    const std::int32_t *column;
    Index rows, columns;
};

// For each row the first color that no earlier row has which meets it in a column.  False if that takes more than `most`
// colors, or longer than `longest`: a row counts as `look` words, and each of its places as those of a column's colors.
bool first_free(const Nonzeros &nonzeros, Index most, Index look, Index longest, std::int64_t *colors);

// Row and column of each place, by column and then by row.
void by_column(const Nonzeros &nonzeros, std::int32_t *row, std::int32_t *column);

}  // namespace gradcheck
