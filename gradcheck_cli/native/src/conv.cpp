#include "conv.h"

#include <utility>

#include "instruction_set.h"

namespace gradcheck {
namespace {

// The stride of the axis-th of the last `count` axes.
Index last_stride(const View &view, std::size_t axis, std::size_t count) {
    return view.stride(static_cast<Index>(axis) - static_cast<Index>(count));
}

// The offsets of a box of `sizes`, row-major, whose axes step by the last strides of `view`, times `factors`; an
// axis that runs backward in `order` is walked from its end.
std::vector<Index> box(const View &view, const std::vector<Index> &sizes, const std::vector<Index> &factors, const View &order) {
    std::vector<Index> offsets = {0};
    for (std::size_t axis = 0; axis < sizes.size(); ++axis) {
        const Index step = last_stride(view, axis, sizes.size()) * factors[axis];
        const bool backward = last_stride(order, axis, sizes.size()) < 0;
        std::vector<Index> wider;
        wider.reserve(offsets.size() * static_cast<std::size_t>(sizes[axis]));
        for (Index offset : offsets)
            for (Index i = 0; i < sizes[axis]; ++i)
                wider.push_back(offset + (backward ? sizes[axis] - 1 - i : i) * step);
        offsets = std::move(wider);
    }
    return offsets;
}

std::vector<Index> last_sizes(const View &view, std::size_t count) {
    const Index *end = view.sizes + view.rank;
    return {end - count, end};
}

// With more rows than this, packing the windows once pays for itself.
constexpr Index few_channels = 16;

// Few channels out and rows of neighbouring windows: one small product for each row of the output, in place.
// False if it does not apply.
template <class T>
bool conv_in_place(const View &x, const View &w, const View &y, const std::vector<Index> &strides, const Tables &tables,
                   const std::vector<BatchAxis> &batch) {
    const Kernels<T> &kernels = instruction_set().of<T>();
    const Index unit = x.complex ? 2 : 1, m = static_cast<Index>(tables.a_rows.size()), width = y.size(-1) * unit;
    const bool rows = strides.back() == 1 && x.stride(-1) == unit && y.stride(-1) == unit && width >= kernels.lanes;
    if (w.complex || w.narrow || x.narrow || !rows || m > few_channels)
        return false;
    std::vector<BatchAxis> all = batch;
    for (std::size_t i = 0; i + 1 < strides.size(); ++i) {
        const Index axis = static_cast<Index>(i) - static_cast<Index>(strides.size());
        all.push_back({y.size(axis), 0, x.stride(axis) * strides[i], y.stride(axis)});
    }
    all = merged(all);
    const Index depth = static_cast<Index>(tables.a_depth.size());
    const Index a_row = m > 1 ? tables.a_rows[1] : 0, c_row = m > 1 ? tables.c_rows[1] : 0;
    run<T>({m, width, depth, w.at<T>(), a_row, 0, x.numbers<T>(), 0, 1, tables.a_depth.data(), tables.b_depth.data(), y.at<T>(),
            c_row, 1, 0, Join::none, all.data(), static_cast<Index>(all.size()), count(all)},
           kernels.small);
    return true;
}

}  // namespace

template <class T>
void conv(const View &x, const View &w, const View &y, const std::vector<Index> &strides, const std::vector<Index> &dilations, Index group) {
    const std::size_t rank = strides.size();
    const Index space = static_cast<Index>(rank), channel = -space - 1, outer = -space - 2;
    const std::vector<Index> out = last_sizes(y, rank), ones(rank, 1), all(rank + 1, 1);
    std::vector<Index> taps = last_sizes(w, rank + 1), spread = {1};
    spread.insert(spread.end(), dilations.begin(), dilations.end());
    const Index m = w.size(outer) / group, channels = w.size(channel);

    // The depth is walked the way the filter lies: its sums have no order, and forward runs are packed faster.
    Tables tables = {steps(m, w.stride(outer)), box(w, taps, all, w),        box(x, taps, spread, w),
                     box(x, out, strides, y),   steps(m, y.stride(channel)), box(y, out, ones, y)};
    std::vector<BatchAxis> batch = batch_axes(w, space + 2, x, space + 2, y, space + 2);
    batch.push_back({y.size(outer), 0, x.stride(outer), y.stride(outer)});
    batch.push_back({group, m * w.stride(outer), channels * x.stride(channel), m * y.stride(channel)});
    if (conv_in_place<T>(x, w, y, strides, tables, batch))
        return;
    const Pairing kinds = pairing(w.complex, x.complex);
    run(make_stack<T>(w.numbers<T>(), x.numbers<T>(), y.at<T>(), std::move(tables), kinds, merged(batch)));
}

template void conv<float>(const View &, const View &, const View &, const std::vector<Index> &, const std::vector<Index> &, Index);
template void conv<double>(const View &, const View &, const View &, const std::vector<Index> &, const std::vector<Index> &, Index);

}  // namespace gradcheck
