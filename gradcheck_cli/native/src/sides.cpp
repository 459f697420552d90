// Compiled once for all instruction sets, and without fused products and sums: results are those of NumPy, to the bit.
#include "sides.h"

#include <cmath>
#include <limits>
#include <vector>

namespace gradcheck {
namespace {

constexpr double comparable = 64, biggest = std::numeric_limits<double>::max(), least = std::numeric_limits<double>::denorm_min();

// The larger magnitude of two numbers, of which a NaN does not count; 0 if it is not finite.
inline double magnitude(double given, double right) {
    const double a = std::fabs(given), b = std::fabs(right);
    const double larger = b == b ? (a >= b ? a : b) : a;
    return larger <= biggest ? larger : 0;
}

// The sizes for one row: `out`, or those of all rows if they have no scale.
const double *sizes_at(const Sizes &sizes, Index row, Index columns, double *out) {
    if (sizes.effect == nullptr)
        return sizes.largest;
    const double scale = sizes.scale[row];
    for (Index j = 0; j < columns; ++j) {
        const double by_effect = scale > 0 ? sizes.effect[j] / scale : std::numeric_limits<double>::infinity();
        out[j] = comparable * by_effect < sizes.largest[j] ? by_effect : sizes.largest[j];
    }
    return out;
}

// Calls body(given, right, sizes for them or what `prepared` makes of them, row) for every row.
template <class Prepare, class Body> void for_rows(const Sides &sides, const Sizes &sizes, const Prepare &prepare, const Body &body) {
    std::vector<double> own(static_cast<std::size_t>(sides.columns)), made(own.size());
    for (Index i = 0; i < sides.rows; ++i) {
        if (i == 0 || sizes.effect != nullptr) {
            const double *size = sizes_at(sizes, i, sides.columns, own.data());
            for (Index j = 0; j < sides.columns; ++j)
                made[static_cast<std::size_t>(j)] = prepare(size[j]);
        }
        body(sides.given + i * sides.given_row, sides.right + i * sides.right_row, made.data(), i);
    }
}

}  // namespace

void raise_largest(const Sides &sides, const double *by, double *largest, double *effect) {
    for (Index i = 0; i < sides.rows; ++i) {
        const double *given = sides.given + i * sides.given_row, *right = sides.right + i * sides.right_row;
        for (Index j = 0; j < sides.columns; ++j) {
            const double size = magnitude(given[j], right[j]);
            largest[j] = size > largest[j] ? size : largest[j];
        }
        if (effect == nullptr)
            continue;
        for (Index j = 0; j < sides.columns; ++j) {
            const double moved = magnitude(given[j], right[j]) * by[i];
            effect[j] = moved > effect[j] ? moved : effect[j];
        }
    }
}

void screen(const Sides &sides, const Sizes &sizes, const Allowed &allowed, std::int8_t open, std::int8_t *status) {
    for_rows(
        sides, sizes, [&](double size) { return allowed.negligible * size + allowed.atol; },
        [&](const double *given, const double *right, const double *trifle, Index i) {
            std::int8_t *out = status + i * sides.columns;
            for (Index j = 0; j < sides.columns; ++j) {
                const double beyond = std::fabs(given[j] - right[j]) + magnitude(given[j], right[j]) * allowed.slack;
                out[j] = beyond <= trifle[j] ? std::int8_t(0) : open;
            }
        });
}

bool farthest(const Sides &sides, const Sizes &sizes, double ground, double floor, Farthest &found) {
    bool numbers = true;
    double absolute = 0, relative = 0;
    const auto at_least = [&](double size) {
        const double share = ground * size, floored = size / floor, larger = share > floored ? share : floored;
        return larger > least ? larger : least;  // 0 / 0 counts as no error
    };
    for_rows(sides, sizes, at_least, [&](const double *given, const double *right, const double *smallest, Index) {
        for (Index j = 0; j < sides.columns; ++j) {
            const double gap = std::fabs(given[j] - right[j]), size = magnitude(given[j], right[j]);
            const double share = gap / (size > smallest[j] ? size : smallest[j]);
            numbers = numbers && gap == gap;
            absolute = gap > absolute ? gap : absolute;
            relative = share > relative ? share : relative;
        }
    });
    found = {absolute, relative};
    return numbers;
}

}  // namespace gradcheck
