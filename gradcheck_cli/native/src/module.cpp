// The extension module `_kernels`: buffers in, products out, without the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>

#include "conv.h"
#include "instruction_set.h"
#include "matmul.h"
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
        return {buffer_.buf, complex, real, buffer_.ndim, buffer_.shape, buffer_.strides};
    }

    // Whether every element lies on a multiple of the size of its reals.
    bool aligned(Index real) const {
        bool even = reinterpret_cast<std::uintptr_t>(buffer_.buf) % static_cast<std::uintptr_t>(real) == 0;
        for (int axis = 0; axis < buffer_.ndim; ++axis)
            even = even && buffer_.strides[axis] % real == 0;
        return even;
    }

  private:
    Py_buffer buffer_;
};

// Calls body(x, y, result, a zero of the type of their reals) without the GIL; false if an operand is not aligned.
template <class Body> bool with_views(nb::handle left, nb::handle right, nb::handle result, bool twofold, const Body &body) {
    const Buffer a(left, false), b(right, false), c(result, true);
    const Index real = twofold ? sizeof(double) : sizeof(float);
    if (!a.aligned(real) || !b.aligned(real))
        return false;
    const View x = a.view(real), y = b.view(real), z = c.view(real);
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

}  // namespace

NB_MODULE(_kernels, module) {
    module.def("matmul", run_matmul);
    module.def("conv", run_conv);
    module.def("threads", threads);
    module.def("set_threads", set_threads);
    module.def("set_single_threaded", set_single_threaded);
    module.def("isa", [] { return std::string(instruction_set().name); });
    module.def("available", available);
    module.def("select", select_instruction_set);
}
