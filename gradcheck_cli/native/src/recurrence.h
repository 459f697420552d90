// Linear recurrences: tangents and cotangents of a recurrent layer over all of its steps, for a stack of probes.  What each
// step does is told in gradcheck_cli/native/recurrences.py.
#pragma once

#include <cstddef>
#include <cstdint>

#include "product.h"

namespace gradcheck {

enum class Cell { rnn, gru, gru_after, lstm };

inline Index gates(Cell cell) { return cell == Cell::rnn ? 1 : cell == Cell::lstm ? 4 : 3; }
inline Index coefficients(Cell cell) { return cell == Cell::rnn ? 1 : cell == Cell::lstm ? 6 : 5; }

// The arrays are dense: coefficients (steps, batch, hidden), states (probes, batch, hidden), sequences (probes, steps,
// batch, ...).  `counts`, if any, tells the steps of each sequence of the batch.
template <class T> struct Recurrence {
    Cell cell;
    Index probes, steps, batch, hidden;
    bool backwards;
    const T *at[6];
    const std::int64_t *counts;
    const T *all, *last;  // packed: R, or of a GRU without `after` the part of u and r, and that of n
    const T *h, *c;
    T *new_h, *new_c;

    // What goes into the gates (rows, gates * hidden), and which row goes where (probes, steps, batch), -1 for zeros.
    const T *rows;
    const std::int32_t *index;
    T *ys;  // states after each step, or nullptr

    const T *ct_ys;  // cotangents of those, or nullptr
    T *sent;         // of what goes into the gates; zeros before
};

// The kernels of an instruction set.  Some probes run side by side, in the lanes of vectors, on one sequence: a task.
template <class T> struct RecurrenceKernels {
    // Packs a matrix whose numbers lie `row` and `column` apart into panels of `height` rows.
    void (*pack)(const T *matrix, Index rows, Index depth, Index row, Index column, T *out);
    void (*push)(const Recurrence<T> &, Index task);
    void (*pull)(const Recurrence<T> &, Index task);
    Index probes;  // of a task
};

// `r` is (gates * hidden, hidden), dense; all else but `all` and `last` is set.
template <class T> void run(Recurrence<T> x, const T *r, bool push);

}  // namespace gradcheck
