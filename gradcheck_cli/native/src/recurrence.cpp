#include "recurrence.h"

#include <vector>

#include "instruction_set.h"
#include "thread_pool.h"

namespace gradcheck {

template <class T> void run(Recurrence<T> x, const T *r, bool push) {
    const RecurrenceKernels<T> &kernels = instruction_set().recurrences<T>();
    const Index size = x.hidden, all = gates(x.cell) * size, first = x.cell == Cell::gru ? 2 * size : all;
    std::vector<T> packed(static_cast<std::size_t>(all * size));
    T *second = packed.data() + first * size;
    if (push) {
        kernels.pack(r, first, size, size, 1, packed.data());
        kernels.pack(r + first * size, all - first, size, size, 1, second);
    } else {  // transposed
        kernels.pack(r, size, first, 1, size, packed.data());
        kernels.pack(r + first * size, size, all - first, 1, size, second);
    }
    x.all = packed.data();
    x.last = second;
    const Index blocks = (x.probes + kernels.probes - 1) / kernels.probes;
    const double work = static_cast<double>(x.probes * x.steps * x.batch) * static_cast<double>(all * size);
    share(blocks * x.batch, deserved(work), [&](Index begin, Index end) {
        for (Index task = begin; task < end; ++task)
            (push ? kernels.push : kernels.pull)(x, task);
    });
}

template void run<float>(Recurrence<float>, const float *, bool);
template void run<double>(Recurrence<double>, const double *, bool);

}  // namespace gradcheck
