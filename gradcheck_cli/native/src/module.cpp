// The extension module `_kernels`: buffers in, products out, without the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <cstring>
#include <deque>
#include <optional>

#include "boxes.h"
#include "chain.h"
#include "conv.h"
#include "instruction_set.h"
#include "matmul.h"
#include "nonzeros.h"
#include "pool.h"
#include "recurrence.h"
#include "sides.h"
#include "thread_pool.h"

namespace nb = nanobind;
using namespace gradcheck;

namespace {

// Holds on to the memory of an array for the duration of a call.
class Buffer {
  public:
    Buffer(nb::handle array, bool writable) {
        if (PyObject_GetBuffer(array.ptr(), &buffer_, writable ? PyBUF_STRIDED : PyBUF_STRIDED_RO) != 0)
            throw nb::python_error();
    }
    ~Buffer() { PyBuffer_Release(&buffer_); }
    Buffer(const Buffer &) = delete;
    Buffer &operator=(const Buffer &) = delete;

    View view(Index real) const {
        const bool complex = buffer_.itemsize == 2 * real;
        if (buffer_.itemsize != real && !complex)
            throw nb::type_error("operands and result are not of one precision");
        return {buffer_.buf, complex, false, real, buffer_.ndim, buffer_.shape, buffer_.strides};
    }

    // As an operand, which may hold floats beside doubles.
    View operand(Index real) const {
        if (real != sizeof(double) || buffer_.itemsize != sizeof(float))
            return view(real);
        return {buffer_.buf, false, true, sizeof(float), buffer_.ndim, buffer_.shape, buffer_.strides};
    }

    // Whether every element lies on a multiple of the size of its reals.
    bool aligned(Index real) const {
        bool even = reinterpret_cast<std::uintptr_t>(buffer_.buf) % static_cast<std::uintptr_t>(real) == 0;
        for (int axis = 0; axis < buffer_.ndim; ++axis)
            even = even && buffer_.strides[axis] % real == 0;
        return even;
    }

    // The memory, and of each axis the size and the stride in bytes.
    char *bytes() const { return static_cast<char *>(buffer_.buf); }
    std::vector<Index> sizes() const { return {buffer_.shape, buffer_.shape + buffer_.ndim}; }
    std::vector<Index> strides() const { return {buffer_.strides, buffer_.strides + buffer_.ndim}; }
    Index item() const { return buffer_.itemsize; }

    // The elements, if they lie one after the other in the order of the axes.
    template <class T> T *dense() const {
        if (!PyBuffer_IsContiguous(&buffer_, 'C'))
            throw nb::type_error("operands and result do not lie in order");
        return static_cast<T *>(buffer_.buf);
    }
    Index size(Index axis) const { return buffer_.shape[axis + buffer_.ndim]; }  // axes count from the end, -1 is the last
    Index elements() const { return buffer_.len / buffer_.itemsize; }

  private:
    Py_buffer buffer_;
};

// Calls body(x, y, result, a zero of the type of their reals) without the GIL; false if an operand is not aligned.
template <class Body> bool with_views(nb::handle left, nb::handle right, nb::handle result, bool twofold, const Body &body) {
    const Buffer a(left, false), b(right, false), c(result, true);
    const Index real = twofold ? sizeof(double) : sizeof(float);
    const View x = a.operand(real), y = b.operand(real), z = c.view(real);
    if (!a.aligned(x.real) || !b.aligned(y.real))
        return false;
    nb::gil_scoped_release release;
    if (twofold)
        body(x, y, z, double());
    else
        body(x, y, z, float());
    return true;
}

bool run_matmul(nb::handle a, nb::handle b, nb::handle out, bool twofold) {
    return with_views(a, b, out, twofold, [](const View &x, const View &y, const View &z, auto zero) {
        matmul<decltype(zero)>(x, y, z);
    });
}

bool run_conv(nb::handle x, nb::handle w, nb::handle out, bool twofold, const std::vector<Index> &strides,
              const std::vector<Index> &dilations, Index group) {
    return with_views(x, w, out, twofold, [&](const View &image, const View &kernel, const View &result, auto zero) {
        conv<decltype(zero)>(image, kernel, result, strides, dilations, group);
    });
}

// Runs a chain of five bytes an instruction on operands, then results; false if an array is not aligned.
bool run_chain(nb::bytes code, nb::sequence arrays, Index operands, Index hidden, bool twofold) {
    const Index real = twofold ? sizeof(double) : sizeof(float);
    Chain chain{std::vector<Instruction>(code.size() / sizeof(Instruction)), {}, operands, hidden};
    if (!chain.code.empty())
        std::memcpy(chain.code.data(), code.c_str(), chain.code.size() * sizeof(Instruction));
    std::deque<Buffer> buffers;
    for (nb::handle array : arrays) {
        const Buffer &buffer = buffers.emplace_back(array, static_cast<Index>(buffers.size()) >= operands);
        if (!buffer.aligned(real))
            return false;
        chain.arrays.push_back(buffer.view(real));
    }
    if (const char *wrong = flaw(chain); *wrong)
        throw nb::value_error(wrong);
    nb::gil_scoped_release release;
    if (twofold)
        run<double>(chain);
    else
        run<float>(chain);
    return true;
}

// Taps, stride, begin and dilation of each axis.
using Geometry = std::vector<std::vector<Index>>;

// The windows of images `whole`, of which there are as many as `pooled` has room for.
std::vector<Windows> windows(const Buffer &whole, const Buffer &pooled, const Geometry &geometry) {
    std::vector<Windows> axes;
    Index axis = -static_cast<Index>(geometry.size());
    for (const std::vector<Index> &g : geometry) {
        axes.push_back({whole.size(axis), g.at(0), g.at(1), g.at(2), g.at(3), pooled.size(axis)});
        ++axis;
    }
    return axes;
}

Index product(const std::vector<Windows> &axes, Index Windows::*size) {
    Index total = 1;
    for (const Windows &axis : axes)
        total *= axis.*size;
    return total;
}

enum class Pool { maxima, winners, sums, spread };

template <class T> PoolKernel<T> pool_kernel(Pool kind) {
    const Pools<T> &pools = instruction_set().pools<T>();
    return kind == Pool::maxima ? pools.maxima : kind == Pool::winners ? pools.winners : kind == Pool::sums ? pools.sums : pools.spread;
}

// Calls body(a zero of the type of their reals, how many reals an element has) for elements of this type code.
template <class Body> auto with_type(char code, const Body &body) {
    switch (code) {
    case 'f': return body(float(), Index(1));
    case 'd': return body(double(), Index(1));
    case 'F': return body(float(), Index(2));
    case 'D': return body(double(), Index(2));
    default: throw nb::type_error("neither real nor complex numbers of single or double precision");
    }
}

template <class T>
void pool_images(Pool kind, const Buffer &x, const Buffer &y, Index *place, const std::vector<Windows> &axes, Index unit) {
    const Index entries = product(axes, &Windows::length), windows = product(axes, &Windows::count);
    const Index images = kind == Pool::spread ? y.elements() / entries : x.elements() / entries;
    const Pooling<T> pooling = {x.dense<T>(), y.dense<T>(), place, axes.data(), static_cast<Index>(axes.size()), unit,
                                entries * unit, windows * unit};
    nb::gil_scoped_release release;
    pool(pooling, images, pool_kernel<T>(kind));
}

// x and y are arrays of the type `code`, dense and not empty; `places` takes those of winners.
void run_pool(Pool kind, nb::handle x, nb::handle y, nb::object places, const Geometry &geometry, char code) {
    if (static_cast<Index>(geometry.size()) > most_axes)
        throw nb::type_error("images of too many axes");
    const Buffer from(x, false), to(y, true);
    const std::vector<Windows> axes = kind == Pool::spread ? windows(to, from, geometry) : windows(from, to, geometry);
    std::optional<Buffer> place;
    Index *at = nullptr;
    if (!places.is_none())
        at = place.emplace(places, true).dense<Index>();
    if (code == 'b')
        pool_images<std::int8_t>(kind, from, to, at, axes, 1);
    else if (code == 'B')
        pool_images<std::uint8_t>(kind, from, to, at, axes, 1);
    else
        with_type(code, [&](auto zero, Index unit) { pool_images<decltype(zero)>(kind, from, to, at, axes, unit); });
}

// Places along an axis; what lies behind it are elements of `row` numbers.
Places places_of(const Buffer &at, const Buffer &whole, const Buffer &some, Index axis = -1, Index row = 1) {
    const Index count = some.size(axis);
    return {at.dense<Index>(), at.elements() / count, some.elements() / (count * row), whole.size(axis), count};
}

bool run_take_at(nb::handle x, nb::handle places, nb::handle y, Index size) {
    const Buffer from(x, false), at(places, false), to(y, true);
    const Places lines = places_of(at, from, to);
    const void *source = from.dense<char>();
    void *target = to.dense<char>();
    nb::gil_scoped_release release;
    return take_at(lines, size, source, target);
}

bool run_add_at(nb::handle x, nb::handle places, nb::handle y, char code) {
    const Buffer from(x, false), at(places, false), to(y, true);
    const Index row = from.size(-1);
    const Places lines = places_of(at, to, from, -2, row);
    return with_type(code, [&](auto zero, Index unit) {
        using T = decltype(zero);
        const T *source = from.dense<T>();
        T *target = to.dense<T>();
        nb::gil_scoped_release release;
        return add_at(lines, unit * row, source, target);
    });
}

// The elements of an array that may be left out, in order.
template <class T> T *dense_or_null(std::deque<Buffer> &held, nb::handle array, bool writable) {
    return array.is_none() ? nullptr : held.emplace_back(array, writable).dense<T>();
}

// Boxes of a tensor, of `lengths`, one for each entry of `starts`, which has an array or None for each axis.
bool run_copy_boxes(nb::handle tensor, nb::sequence starts, const std::vector<Index> &lengths, nb::handle dense, bool back) {
    const Buffer whole(tensor, back), cut(dense, !back);
    std::deque<Buffer> held;
    Boxes boxes{{}, lengths, whole.sizes(), whole.strides(), cut.sizes().at(0)};
    for (nb::handle start : starts)
        boxes.starts.push_back(dense_or_null<Index>(held, start, false));
    for (const Buffer &start : held)
        if (start.elements() != boxes.count)
            throw nb::type_error("a start for each box");
    if (boxes.starts.size() != boxes.sizes.size() || lengths.size() != boxes.sizes.size())
        throw nb::type_error("a start and a length for each axis");
    if (cut.item() != whole.item())
        throw nb::type_error("boxes and tensor are not of one type");
    char *some = cut.dense<char>();
    nb::gil_scoped_release release;
    return copy_boxes(boxes, whole.item(), whole.bytes(), some, back);
}

template <class T> void run_recurrence(Recurrence<T> x, bool push, nb::sequence point, nb::handle counts, nb::sequence given, nb::sequence made) {
    std::deque<Buffer> held;
    const auto input = [&](nb::sequence from, int i) { return dense_or_null<T>(held, nb::object(from[i]), false); };
    const auto output = [&](int i) { return dense_or_null<T>(held, nb::object(made[i]), true); };
    const int number = static_cast<int>(coefficients(x.cell));
    for (int i = 0; i < number; ++i)
        x.at[i] = input(point, i);
    const T *r = input(point, number);
    x.counts = dense_or_null<std::int64_t>(held, counts, false);
    x.h = input(given, 0);
    x.c = input(given, 1);
    if (push) {
        x.rows = input(given, 2);
        x.index = dense_or_null<std::int32_t>(held, nb::object(given[3]), false);
    } else {
        x.ct_ys = input(given, 2);
    }
    x.new_h = output(0);
    x.new_c = output(1);
    (push ? x.ys : x.sent) = output(2);
    nb::gil_scoped_release release;
    run<T>(x, r, push);
}

// Arrays of one type, dense, and of shapes that fit: `point` holds coefficients and R; `given` the states h and c, then rows
// and their index to push, cotangents to pull; `made` the new h and c, then states to push, cotangents of gates to pull.
void run_recurrences(int cell, bool push, bool backwards, const std::vector<Index> &sizes, nb::sequence point, nb::object counts,
                     nb::sequence given, nb::sequence made, bool twofold) {
    const auto run = [&](auto zero) {
        Recurrence<decltype(zero)> x = {};
        x.cell = static_cast<Cell>(cell);
        x.probes = sizes.at(0);
        x.steps = sizes.at(1);
        x.batch = sizes.at(2);
        x.hidden = sizes.at(3);
        x.backwards = backwards;
        run_recurrence(x, push, point, counts, given, made);
    };
    if (twofold)
        run(double());
    else
        run(float());
}

// The numbers of a vector of `count`; null for None.
double *vector(std::optional<Buffer> &buffer, nb::handle array, Index count, bool writable) {
    if (array.is_none())
        return nullptr;
    double *numbers = buffer.emplace(array, writable).dense<double>();
    if (buffer->elements() != count)
        throw nb::type_error("as many sizes as columns, as many scales as rows");
    return numbers;
}

// Both sides of a Jacobian and the sizes of its columns, of float64.
struct Judged {
    Buffer given, right;
    std::optional<Buffer> most, moved, share;
    Sides sides;
    double *largest, *effect, *scale;

    Judged(nb::handle theoretical, nb::handle numerical, nb::handle largest_of, nb::handle effect_of, nb::handle scale_of, bool writable)
        : given(theoretical, false), right(numerical, false), sides(both(given, right)),
          largest(vector(most, largest_of, sides.columns, writable)), effect(vector(moved, effect_of, sides.columns, writable)),
          scale(vector(share, scale_of, sides.rows, false)) {
        if (largest == nullptr || (effect == nullptr) != (scale == nullptr))
            throw nb::type_error("sizes by column, and effects with scales by row");
    }
    Sizes sizes() const { return {largest, effect, scale}; }

  private:
    static Sides both(const Buffer &given, const Buffer &right) {
        const View x = given.view(sizeof(double)), y = right.view(sizeof(double));
        if (x.rank != 2 || y.rank != 2 || x.size(0) != y.size(0) || x.size(1) != y.size(1) || x.complex || y.complex)
            throw nb::type_error("both sides have rows and columns of reals");
        if (x.stride(1) != 1 || y.stride(1) != 1 || !given.aligned(sizeof(double)) || !right.aligned(sizeof(double)))
            throw nb::type_error("columns of both sides lie side by side");
        return {x.at<double>(), y.at<double>(), x.size(0), x.size(1), x.stride(0), y.stride(0)};
    }
};

void run_raise_largest(nb::handle given, nb::handle right, nb::object largest, nb::object effect, nb::object by) {
    const Judged judged(given, right, largest, effect, by, true);
    nb::gil_scoped_release release;
    raise_largest(judged.sides, judged.scale, judged.largest, judged.effect);
}

void run_screen(nb::handle given, nb::handle right, nb::object largest, nb::object effect, nb::object scale, double slack,
                double negligible, double atol, int open, nb::handle status) {
    const Judged judged(given, right, largest, effect, scale, false);
    const Buffer out(status, true);
    std::int8_t *to = out.dense<std::int8_t>();
    if (out.elements() != judged.sides.rows * judged.sides.columns)
        throw nb::type_error("a status for each entry");
    nb::gil_scoped_release release;
    screen(judged.sides, judged.sizes(), {slack, negligible, atol}, static_cast<std::int8_t>(open), to);
}

std::optional<std::vector<double>> run_farthest(nb::handle given, nb::handle right, nb::object largest, nb::object effect,
                                                nb::object scale, double ground, double floor) {
    const Judged judged(given, right, largest, effect, scale, false);
    Farthest found;
    bool numbers;
    {
        nb::gil_scoped_release release;
        numbers = farthest(judged.sides, judged.sizes(), ground, floor, found);
    }
    if (!numbers)
        return std::nullopt;
    return std::vector<double>{found.absolute, found.relative};
}

// Places whose columns exist; `starts` and `column` hold on to their memory.
Nonzeros nonzeros(const Buffer &starts, const Buffer &column, Index columns) {
    const Nonzeros all = {starts.dense<std::int64_t>(), column.dense<std::int32_t>(), starts.elements() - 1, columns};
    bool fits = all.rows >= 0 && all.starts[0] == 0 && all.starts[all.rows] == column.elements();
    for (Index row = 0; fits && row < all.rows; ++row)
        fits = all.starts[row] <= all.starts[row + 1];
    for (Index at = 0; fits && at < column.elements(); ++at)
        fits = all.column[at] >= 0 && all.column[at] < columns;
    if (!fits)
        throw nb::type_error("places by row, in columns that there are");
    return all;
}

bool run_first_free(nb::handle starts, nb::handle column, Index columns, Index most, Index look, Index longest, nb::handle colors) {
    const Buffer begun(starts, false), in(column, false), out(colors, true);
    std::int64_t *to = out.dense<std::int64_t>();
    if (out.elements() + 1 != begun.elements())
        throw nb::type_error("a color for each row");
    nb::gil_scoped_release release;
    return first_free(nonzeros(begun, in, columns), most, look, longest, to);
}

void run_by_column(nb::handle starts, nb::handle column, Index columns, nb::handle row_out, nb::handle column_out) {
    const Buffer begun(starts, false), in(column, false), rows(row_out, true), sorted(column_out, true);
    std::int32_t *row = rows.dense<std::int32_t>(), *to = sorted.dense<std::int32_t>();
    if (rows.elements() != in.elements() || sorted.elements() != in.elements())
        throw nb::type_error("a row and a column for each place");
    nb::gil_scoped_release release;
    by_column(nonzeros(begun, in, columns), row, to);
}

}  // namespace

NB_MODULE(_kernels, module) {
    module.def("matmul", run_matmul);
    module.def("conv", run_conv);
    module.def("chain", run_chain);
    nb::enum_<Pool>(module, "Pool")
        .value("MAXIMA", Pool::maxima)
        .value("WINNERS", Pool::winners)
        .value("SUMS", Pool::sums)
        .value("SPREAD", Pool::spread);
    module.def("pool", run_pool, nb::arg("kind"), nb::arg("x"), nb::arg("y"), nb::arg("places").none(), nb::arg("geometry"),
               nb::arg("code"));
    module.def("take_at", run_take_at);
    module.def("add_at", run_add_at);
    module.def("copy_boxes", run_copy_boxes);
    module.def("recurrence", run_recurrences, nb::arg("cell"), nb::arg("push"), nb::arg("backwards"), nb::arg("sizes"),
               nb::arg("point"), nb::arg("counts").none(), nb::arg("given"), nb::arg("made"), nb::arg("twofold"));
    module.def("raise_largest", run_raise_largest, nb::arg("given"), nb::arg("right"), nb::arg("largest"),
               nb::arg("effect").none(), nb::arg("by").none());
    module.def("screen", run_screen, nb::arg("given"), nb::arg("right"), nb::arg("largest"), nb::arg("effect").none(),
               nb::arg("scale").none(), nb::arg("slack"), nb::arg("negligible"), nb::arg("atol"), nb::arg("open"), nb::arg("status"));
    module.def("farthest", run_farthest, nb::arg("given"), nb::arg("right"), nb::arg("largest"), nb::arg("effect").none(),
               nb::arg("scale").none(), nb::arg("ground"), nb::arg("floor"));
    module.def("first_free", run_first_free);
    module.def("by_column", run_by_column);
    module.def("threads", threads);
    module.def("set_threads", set_threads);
    module.def("set_single_threaded", set_single_threaded);
    module.def("isa", [] { return std::string(instruction_set().name); });
    module.def("available", available);
    module.def("select", select_instruction_set);
}
