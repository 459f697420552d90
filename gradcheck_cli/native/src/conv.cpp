#include "conv.h"

#include <utility>

namespace gradcheck {
namespace {

// The offsets of a box of `sizes`, row-major, whose axes step by the last strides of `view`, times `factors`.
std::vector<Index> box(const View &view, const std::vector<Index> &sizes, const std::vector<Index> &factors) {
    std::vector<Index> offsets = {0};
    for (std::size_t axis = 0; axis < sizes.size(); ++axis) {
        const Index step = view.stride(static_cast<Index>(axis) - static_cast<Index>(sizes.size())) * factors[axis];
        std::vector<Index> wider;
        wider.reserve(offsets.size() * static_cast<std::size_t>(sizes[axis]));
        for (Index offset : offsets)
            for (Index i = 0; i < sizes[axis]; ++i)
                wider.push_back(offset + i * step);
        offsets = std::move(wider);
    }
    return offsets;
}

std::vector<Index> last_sizes(const View &view, std::size_t count) {
    const Index *end = view.sizes + view.rank;
    return {end - count, end};
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

    Tables tables = {steps(m, w.stride(outer)), box(w, taps, all),           box(x, taps, spread),
                     box(x, out, strides),      steps(m, y.stride(channel)), box(y, out, ones)};
    std::vector<BatchAxis> batch = batch_axes(w, space + 2, x, space + 2, y, space + 2);
    batch.push_back({y.size(outer), 0, x.stride(outer), y.stride(outer)});
    batch.push_back({group, m * w.stride(outer), channels * x.stride(channel), m * y.stride(channel)});
    const Pairing kinds = pairing(w.complex, x.complex);
    run(make_stack<T>(w.at<T>(), x.at<T>(), y.at<T>(), std::move(tables), kinds, merged(batch)));
}

template void conv<float>(const View &, const View &, const View &, const std::vector<Index> &, const std::vector<Index> &, Index);
template void conv<double>(const View &, const View &, const View &, const std::vector<Index> &, const std::vector<Index> &, Index);

}  // namespace gradcheck
