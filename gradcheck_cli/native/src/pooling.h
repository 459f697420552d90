// Sums, maxima and winners over windows, one axis after the other: windows are boxes.
//
// Along an axis, entries and windows lie in rows of `inner` numbers.  Sums go from the first axis to the last, so that
// all axes but the last are added in long rows; the transpose goes back the same way.  Small images go together.
#pragma once

#include <limits>

#include "pool.h"
#include "scratch.h"

namespace gradcheck::GRADCHECK_ISA {

// One axis: `blocks` times over, `entries` rows of `inner` numbers are seen by `windows` rows of as many.
struct Pass {
    const Windows *axis;
    Index blocks, inner, entries, windows;
};

// The passes over all axes in their order.
struct Passes {
    Pass pass[most_axes];
    Index count;
};

enum class Order { forward, backward };

// From entries to windows, or back if it `spreads`, for some images at once: axes that are done have the one size,
// those to come the other.
template <class T> Passes passes(const Pooling<T> &pooling, Index images, Order order, bool spreads = false) {
    Passes found = {{}, pooling.rank};
    for (Index turn = 0; turn < pooling.rank; ++turn) {
        const bool forward = order == Order::forward;
        const Index at = forward ? turn : pooling.rank - 1 - turn;
        const auto size = [&](Index axis, bool done) {
            return done != spreads ? pooling.axes[axis].count : pooling.axes[axis].length;
        };
        Pass &pass = found.pass[turn];
        pass = {pooling.axes + at, images, pooling.unit, pooling.axes[at].length, pooling.axes[at].count};
        for (Index axis = 0; axis < at; ++axis)
            pass.blocks *= size(axis, forward);
        for (Index axis = at + 1; axis < pooling.rank; ++axis)
            pass.inner *= size(axis, !forward);
    }
    return found;
}

// The windows [first, last) in which a tap that lies at `place` in window 0 lies on the axis.
inline Span seeing(const Windows &axis, Index place) {
    const Index room = axis.length - 1 - place, reached = room < 0 ? 0 : room / axis.stride + 1;
    const Index first = place < 0 ? (axis.stride - 1 - place) / axis.stride : 0;
    const Index last = reached < axis.count ? reached : axis.count;
    return {first < last ? first : last, last};
}

// Says of a loop that what it writes is nothing that it reads.
#if defined(__clang__)
#define GRADCHECK_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define GRADCHECK_INDEPENDENT _Pragma("GCC ivdep")
#else
#define GRADCHECK_INDEPENDENT
#endif

// Calls op(number of a window, number of an entry) for `count` rows; entries lie `stride` rows apart.  Numbers that
// are known when this is compiled go by template; 0 stands for any.
template <int Inner, int Stride, class Op> inline void for_rows(Index count, Index inner, Index stride, const Op &op) {
    const Index n = Inner ? Inner : inner, step = (Stride ? Stride : stride) * n;
    GRADCHECK_INDEPENDENT
    for (Index row = 0; row < count; ++row) {
        GRADCHECK_INDEPENDENT
        for (Index i = 0; i < n; ++i)
            op(row * n + i, row * step + i);
    }
}

template <class Op> inline void for_numbers(Index count, Index inner, Index stride, const Op &op) {
    if (stride == 1)
        for_rows<1, 1>(count * inner, 1, 1, op);
    else if (inner == 1 && stride == 2)
        for_rows<1, 2>(count, 1, 2, op);
    else if (inner == 1)
        for_rows<1, 0>(count, 1, stride, op);
    else if (inner == 2)
        for_rows<2, 0>(count, 2, stride, op);
    else
        for_rows<0, 0>(count, inner, stride, op);
}

// Calls op(number of a window, number of the entry that its tap meets) for one tap and all windows that it is in.
template <class Op> void for_tap(const Pass &pass, Index tap, const Op &op) {
    const Windows &axis = *pass.axis;
    const Index place = tap * axis.dilation - axis.begin, n = pass.inner;
    const Span span = seeing(axis, place);
    const bool tiled = pass.entries == pass.windows * axis.stride && span.last - span.first == axis.count;
    const Index runs = tiled ? 1 : pass.blocks, count = tiled ? pass.blocks * axis.count : span.last - span.first;
    for (Index run = 0; run < runs; ++run) {
        const Index w = (run * pass.windows + span.first) * n, e = (run * pass.entries + place + span.first * axis.stride) * n;
        for_numbers(count, n, axis.stride, [=](Index i, Index j) { op(w + i, e + j); });
    }
}

template <class T> void fill(T *y, Index count, T value) {
    for (Index i = 0; i < count; ++i)
        y[i] = value;
}

// As many images as fit the innermost cache.
template <class T> Index together(const Pooling<T> &p, Index images) {
    constexpr Index room = 16384 / static_cast<Index>(sizeof(T));
    const Index most = room / (p.entries + p.windows) + 1;
    return most < images ? most : images;
}

// Room for what lies between passes, `numbers` at most: two buffers, in turn.
template <class U> struct Between {
    U *memory;
    Index numbers;

    U *operator[](Index turn) const { return memory + turn % 2 * numbers; }
};

template <class U> Between<U> between(const Passes &passes, Slot slot, bool spreads = false) {
    Index most = 0;
    for (Index i = 0; i + 1 < passes.count; ++i) {
        const Pass &pass = passes.pass[i];
        const Index made = pass.blocks * pass.inner * (spreads ? pass.entries : pass.windows);
        most = made > most ? made : most;
    }
    return {static_cast<U *>(scratch(slot, 2 * static_cast<std::size_t>(most) * sizeof(U))), most};
}

// Every number of y: `empty`, and then what op makes of it and each number of x that its window sees.
template <class T, class Op> void pool_windows(const Pooling<T> &p, Index first, Index last, T empty, const Op &op) {
    for (Index images; first < last; first += images) {
        images = together(p, last - first);
        const Passes order = passes(p, images, Order::forward);
        const Between<T> buffers = between<T>(order, Slot::left);
        const T *x = p.x + first * p.entries;
        for (Index turn = 0; turn < order.count; ++turn) {
            const Pass &pass = order.pass[turn];
            T *y = turn + 1 < order.count ? buffers[turn] : p.y + first * p.windows;
            fill(y, pass.blocks * pass.windows * pass.inner, empty);
            for (Index tap = 0; tap < pass.axis->taps; ++tap)
                for_tap(pass, tap, [=](Index w, Index e) { y[w] = op(y[w], x[e]); });
            x = y;
        }
    }
}

template <class T> void sum_windows(const Pooling<T> &p, Index first, Index last) {
    pool_windows(p, first, last, T(0), [](T a, T b) { return static_cast<T>(a + b); });
}

template <class T> constexpr T lowest() {
    using Limits = std::numeric_limits<T>;
    return Limits::has_infinity ? static_cast<T>(-Limits::infinity()) : Limits::lowest();
}

// Not a number where a window sees one that is none, as NumPy's maximum.
template <class T> void max_windows(const Pooling<T> &p, Index first, Index last) {
    constexpr T empty = lowest<T>();
    pool_windows(p, first, last, empty, [](T a, T b) {
        const T larger = b > a ? b : a;  // a where b is not a number
        return b != b ? b : larger;
    });
}

// The transpose of `sum_windows`: every entry gets the sum over the windows that see it.
template <class T> void spread_windows(const Pooling<T> &p, Index first, Index last) {
    for (Index images; first < last; first += images) {
        images = together(p, last - first);
        const Passes order = passes(p, images, Order::backward, true);
        const Between<T> buffers = between<T>(order, Slot::left, true);
        const T *x = p.x + first * p.windows;
        for (Index turn = 0; turn < order.count; ++turn) {
            const Pass &pass = order.pass[turn];
            T *y = turn + 1 < order.count ? buffers[turn] : p.y + first * p.entries;
            fill(y, pass.blocks * pass.entries * pass.inner, T(0));
            for (Index tap = 0; tap < pass.axis->taps; ++tap)
                for_tap(pass, tap, [=](Index w, Index e) { y[e] += x[w]; });
            x = y;
        }
    }
}

// The first tap of a window that lies on the axis; the last entry if there is none.
inline Index first_seen(const Windows &axis, Index window) {
    const Index start = window * axis.stride - axis.begin;
    const Index seen = start >= 0 ? start : start + (axis.dilation - 1 - start) / axis.dilation * axis.dilation;
    return seen < axis.length ? seen : axis.length - 1;
}

// The maximum of each window along one axis: of x and its numbers' places, into y and those of its numbers.  A window
// starts with its first entry, which stays where nothing is greater: also if it is not a number.
template <class T> void win(const Pass &pass, const T *x, const Index *x_place, T *y, Index *y_place) {
    const auto take = [=](Index w, Index e) {
        y[w] = x[e];
        y_place[w] = x_place[e];
    };
    const Windows &axis = *pass.axis;
    const Span whole = seeing(axis, -axis.begin);
    for_tap(pass, 0, take);
    for (Index window = 0; window < axis.count; ++window)
        if (window < whole.first || window >= whole.last)
            for (Index block = 0; block < pass.blocks; ++block)
                for (Index i = 0; i < pass.inner; ++i)
                    take((block * pass.windows + window) * pass.inner + i,
                         (block * pass.entries + first_seen(axis, window)) * pass.inner + i);
    for (Index tap = 1; tap < axis.taps; ++tap)
        for_tap(pass, tap, [=](Index w, Index e) {
            const T here = x[e], best = y[w];
            const Index better = -static_cast<Index>(here > best);  // all bits or none: a branch would be guessed wrong
            y_place[w] = (x_place[e] & better) | (y_place[w] & ~better);
            y[w] = here > best ? here : best;
        });
}

// The maximum of each window and its place: the first of equals, the innermost axis first.
template <class T> void find_winners(const Pooling<T> &p, Index first, Index last) {
    const Index most = together(p, last - first);
    Index *own = static_cast<Index *>(scratch(Slot::image, static_cast<std::size_t>(most * p.entries) * sizeof(Index)));
    for (Index i = 0; i < most * p.entries; ++i)
        own[i] = i % p.entries;
    for (Index images; first < last; first += images) {
        images = together(p, last - first);
        const Passes order = passes(p, images, Order::backward);
        const Between<T> buffers = between<T>(order, Slot::left);
        const Between<Index> places = between<Index>(order, Slot::right);
        const T *x = p.x + first * p.entries;
        const Index *x_place = own;
        for (Index turn = 0; turn < order.count; ++turn) {
            const bool final = turn + 1 == order.count;
            T *y = final ? p.y + first * p.windows : buffers[turn];
            Index *y_place = final ? p.place + first * p.windows : places[turn];
            win(order.pass[turn], x, x_place, y, y_place);
            x = y;
            x_place = y_place;
        }
    }
}

}  // namespace gradcheck::GRADCHECK_ISA
