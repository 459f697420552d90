#include "matmul.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "instruction_set.h"

namespace gradcheck {
namespace {

// B up to this many reals stays in the innermost cache; few rows are not worth packing whatever its size.
constexpr Index small_right = 8192, few_rows = 16;

// Sizes and strides of the matrices, complex ones counted as such; strides in reals.
struct Matrices {
    Index m, n, depth, a_row, a_depth, b_depth, b_column, c_row, c_column;
};

// Makes the longest axis of the batch rows of A along which B stands still and all rows keep their distance.
void fold_rows(Matrices &x, std::vector<BatchAxis> &batch) {
    auto longest = batch.end();
    for (auto axis = batch.begin(); axis != batch.end(); ++axis) {
        const bool even = axis->a == x.m * x.a_row && axis->c == x.m * x.c_row;
        if (axis->b == 0 && (even || x.m == 1) && (longest == batch.end() || axis->count > longest->count))
            longest = axis;
    }
    if (longest == batch.end())
        return;
    if (x.m == 1) {
        x.a_row = longest->a;
        x.c_row = longest->c;
    }
    x.m *= longest->count;
    batch.erase(longest);
}

// Makes the matrices real ones if the unpacked kernel can multiply them, and says how many reals of B lie side by side
// where it has to copy B first.
bool fits_in_place(Matrices &x, Pairing pairing, Index &b_unit) {
    const Index row = pairing == Pairing::left || pairing == Pairing::both ? 2 : 1;
    const Index column = pairing == Pairing::right || pairing == Pairing::both ? 2 : 1;
    const bool light = x.n * x.depth * column <= small_right, straight = x.b_column == column;
    if (!light && !(straight && x.m * row <= few_rows))
        return false;
    b_unit = straight ? 0 : column;
    if (straight)
        x.b_column = 1;
    x.m *= row;
    x.n *= column;
    x.c_column = 1;
    return true;
}

bool fits_dots(const Matrices &x, Pairing pairing) {
    constexpr Index worth = 16, most = 4;
    return pairing == Pairing::none && std::min(x.m, x.n) <= most && x.a_depth == 1 && x.b_depth == 1 && x.depth >= worth;
}

// Whether B is so large, and its lines so long, that it pays to read it in order.
template <class T> bool fits_lines(const Matrices &x, bool narrow) {
    constexpr Index size = sizeof(T), page = 4096, large = 1 << 18;
    return x.m <= few_rows && x.b_column == 1 && (narrow || (std::abs(x.b_depth) * size >= page && x.n * x.depth * size >= large));
}

// The product of the transposes, transposed.
template <class T> void turn(Matrices &x, Numbers<T> &a, Numbers<T> &b, std::vector<BatchAxis> &batch) {
    std::swap(a, b);
    x = {x.n, x.m, x.depth, x.b_column, x.b_depth, x.a_depth, x.a_row, x.c_column, x.c_row};
    for (BatchAxis &axis : batch)
        std::swap(axis.a, axis.b);
}

template <class T>
SmallProducts<T> small(const Matrices &x, Numbers<T> a, Numbers<T> b, T *c, Index b_unit, Join join, const std::vector<BatchAxis> &batch) {
    return {x.m, x.n, x.depth, a.wide(), x.a_row, x.a_depth, b, x.b_depth,
            x.b_column, nullptr, nullptr, c, x.c_row, x.c_column, b_unit, join, batch.data(),
            static_cast<Index>(batch.size()), count(batch)};
}

}  // namespace

template <class T> void matmul(const View &left, const View &right, const View &c) {
    const Pairing kinds = pairing(left.complex, right.complex);
    Numbers<T> a = left.numbers<T>(), b = right.numbers<T>();
    Matrices x = {c.size(-2),       c.size(-1),       left.size(-1), left.stride(-2), left.stride(-1),
                  right.stride(-2), right.stride(-1), c.stride(-2),  c.stride(-1)};
    std::vector<BatchAxis> batch = merged(batch_axes(left, 2, right, 2, c, 2));
    fold_rows(x, batch);
    const bool column = kinds == Pairing::none && x.n == 1 && x.m > 1;
    if (column && x.c_row == 1)
        turn(x, a, b, batch);
    const Kernels<T> &kernels = instruction_set().of<T>();
    if (fits_dots(x, kinds)) {
        if (a.narrow)
            turn(x, a, b, batch);
        run(small<T>(x, a, b, c.at<T>(), 0, Join::none, batch), kernels.dots);
        return;
    }
    Index b_unit;
    Matrices real = x;
    if (!a.narrow && fits_in_place(real, kinds, b_unit) && (!b.narrow || fits_lines<T>(real, b.narrow))) {
        run(small<T>(real, a, b, c.at<T>(), b_unit, join(kinds), batch), fits_lines<T>(real, b.narrow) ? kernels.lines : kernels.small);
        return;
    }
    Tables tables = {steps(x.m, x.a_row),    steps(x.depth, x.a_depth), steps(x.depth, x.b_depth),
                     steps(x.n, x.b_column), steps(x.m, x.c_row),       steps(x.n, x.c_column)};
    run(make_stack<T>(a, b, c.at<T>(), std::move(tables), kinds,
                      std::move(batch)));
}

template void matmul<float>(const View &, const View &, const View &);
template void matmul<double>(const View &, const View &, const View &);

}  // namespace gradcheck
