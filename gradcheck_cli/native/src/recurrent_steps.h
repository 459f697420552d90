// The steps of linear recurrences: numbers of the probes of a task lie side by side, those of units one below the other.
#pragma once

#include "elementwise.h"
#include "micro_kernel.h"
#include "recurrence.h"
#include "scratch.h"

namespace gradcheck::GRADCHECK_ISA {

template <class T> constexpr Index task_probes = 2 * lanes<T>;

template <class T> void pack_rows(const T *matrix, Index rows, Index depth, Index row, Index column, T *out) {
    for (Index first = 0; first < rows; first += GRADCHECK_PACKED_ROWS) {
        const Index count = rows - first < GRADCHECK_PACKED_ROWS ? rows - first : GRADCHECK_PACKED_ROWS;
        for (Index p = 0; p < depth; ++p)
            for (Index i = 0; i < count; ++i)
                *out++ = matrix[(first + i) * row + p * column];
    }
}

// A task: its sequence and probes, and memory for the states, the gates and one number of each unit.
template <class T> class Task {
  public:
    static constexpr Index width = task_probes<T>;

    Task(const Recurrence<T> &x, Index number)
        : x_(x), size_(x.hidden), all_(gates(x.cell) * x.hidden), sequence_(number % x.batch), first_(number / x.batch * width),
          probes_(x.probes - first_ < width ? x.probes - first_ : width) {
        const Index units = all_ + 3 * size_;
        h_ = static_cast<T *>(scratch(Slot::left, static_cast<std::size_t>(units * width) * sizeof(T)));
        c_ = h_ + size_ * width;
        mixed_ = c_ + size_ * width;
        z_ = mixed_ + size_ * width;
        for (Index i = 0; i < units * width; ++i)
            h_[i] = T(0);
        moving_ = add_in(x.h, 1, 0, size_, h_);
        if (x.c != nullptr)
            moving_ |= add_in(x.c, 1, 0, size_, c_);
    }

    void push() {
        for (Index s = 0; s < count(); ++s) {
            const Index t = x_.backwards ? count() - 1 - s : s;
            moving_ |= enters(t);
            if (!moving_)  // nothing has entered yet: all is zero
                continue;
            advance(t);
            if (x_.ys != nullptr)
                take_out(h_, x_.steps, t, 0, size_, size_, x_.ys);
        }
        end();
    }

    void pull() {
        for (Index s = count() - 1; s >= 0; --s) {
            const Index t = x_.backwards ? count() - 1 - s : s;
            if (x_.ct_ys != nullptr)
                moving_ |= add_in(x_.ct_ys, x_.steps, t, size_, h_);
            if (moving_)
                go_back(t);
        }
        end();
    }

  private:
    Index count() const {
        if (x_.counts == nullptr)
            return x_.steps;
        const Index own = static_cast<Index>(x_.counts[sequence_]);
        return own < 0 ? 0 : own < x_.steps ? own : x_.steps;
    }

    // Coefficient k of all units in step t.
    const T *at(int k, Index t) const { return x_.at[k] + (t * x_.batch + sequence_) * size_; }

    Index place(Index probe, Index steps, Index t) const { return ((first_ + probe) * steps + t) * x_.batch + sequence_; }

    // Adds the numbers of each probe to `units` lines; true if one is not zero.
    bool add_in(const T *from, Index steps, Index t, Index units, T *to) const {
        bool found = false;
        for (Index probe = 0; probe < probes_; ++probe) {
            const T *line = from + place(probe, steps, t) * units;
            bool some = false;
            for (Index k = 0; k < units; ++k)
                some |= line[k] != T(0);
            for (Index k = 0; some && k < units; ++k)
                to[k * width + probe] += line[k];
            found |= some;
        }
        return found;
    }

    // Writes `units` lines to where each probe has numbers [begin, begin + units) of `stride`.
    void take_out(const T *from, Index steps, Index t, Index begin, Index units, Index stride, T *to) const {
        for (Index probe = 0; probe < probes_; ++probe) {
            T *line = to + place(probe, steps, t) * stride + begin;
            for (Index k = 0; k < units; ++k)
                line[k] = from[k * width + probe];
        }
    }

    bool enters(Index t) const {
        bool found = false;
        for (Index probe = 0; probe < probes_; ++probe)
            found |= x_.index[place(probe, x_.steps, t)] >= 0;
        return found;
    }

    // Adds what goes into gates [begin, end) of step t.
    void enter(Index t, Index begin, Index end) {
        for (Index probe = 0; probe < probes_; ++probe) {
            const std::int32_t row = x_.index[place(probe, x_.steps, t)];
            if (row < 0)
                continue;
            const T *line = x_.rows + static_cast<Index>(row) * all_;
            for (Index k = begin; k < end; ++k)
                z_[k * width + probe] += line[k];
        }
    }

    // to = matrix from, or what it was and that.
    static void multiply(const T *matrix, Index rows, Index depth, const T *from, T *to, bool add) {
        T *lines[GRADCHECK_PACKED_ROWS];
        for (Index first = 0; first < rows; first += GRADCHECK_PACKED_ROWS) {
            const Index few = rows - first < GRADCHECK_PACKED_ROWS ? rows - first : GRADCHECK_PACKED_ROWS;
            for (Index i = 0; i < few; ++i)
                lines[i] = to + (first + i) * width;
            panel_kernel<T>(static_cast<int>(few), 2)(depth, matrix + first * depth, from, lines, add);
        }
    }

    // Calls body(unit, i) for each unit and each of its numbers i.
    template <class Body> void each(const Body &body) const {
        for (Index j = 0; j < size_; ++j) {
            GRADCHECK_IN_ANY_ORDER
            for (Index i = j * width; i < (j + 1) * width; ++i)
                body(j, i);
        }
    }

    void advance(Index t) {
        T *const h = h_, *const c = c_, *const mixed = mixed_, *const z = z_;
        const Index part = size_ * width;
        const T *const k0 = at(0, t);
        if (x_.cell == Cell::rnn) {
            multiply(x_.all, all_, size_, h, z, false);
            enter(t, 0, all_);
            each([=](Index j, Index i) { h[i] = k0[j] * z[i]; });
            return;
        }
        const T *const k1 = at(1, t), *const k2 = at(2, t), *const k3 = at(3, t), *const k4 = at(4, t);
        if (x_.cell == Cell::lstm) {
            const T *const k5 = at(5, t);
            multiply(x_.all, all_, size_, h, z, false);
            enter(t, 0, all_);
            each([=](Index j, Index i) {
                c[i] = k0[j] * c[i] + k1[j] * z[i] + k2[j] * z[2 * part + i] + k3[j] * z[3 * part + i];
                h[i] = k4[j] * c[i] + k5[j] * z[part + i];
            });
            return;
        }
        if (x_.cell == Cell::gru) {
            multiply(x_.all, 2 * size_, size_, h, z, false);
            enter(t, 0, 2 * size_);
            each([=](Index j, Index i) { mixed[i] = k4[j] * h[i] + k3[j] * z[part + i]; });
            multiply(x_.last, size_, size_, mixed, z + 2 * part, false);
        } else {
            multiply(x_.all, all_, size_, h, z, false);
            enter(t, 0, 2 * size_);
            each([=](Index j, Index i) { z[2 * part + i] = k4[j] * z[2 * part + i] + k3[j] * z[part + i]; });
        }
        enter(t, 2 * size_, all_);
        each([=](Index j, Index i) { h[i] = k0[j] * h[i] + k1[j] * z[i] + k2[j] * z[2 * part + i]; });
    }

    void go_back(Index t) {
        T *const h = h_, *const c = c_, *const mixed = mixed_, *const z = z_;
        const Index part = size_ * width;
        const T *const k0 = at(0, t);
        if (x_.cell == Cell::rnn) {
            each([=](Index j, Index i) { z[i] = k0[j] * h[i]; });
            send(t, 0, all_, z);
            multiply(x_.all, size_, all_, z, h, false);
            return;
        }
        const T *const k1 = at(1, t), *const k2 = at(2, t), *const k3 = at(3, t), *const k4 = at(4, t);
        if (x_.cell == Cell::lstm) {
            const T *const k5 = at(5, t);
            each([=](Index j, Index i) {
                c[i] += k4[j] * h[i];
                z[i] = k1[j] * c[i];
                z[part + i] = k5[j] * h[i];
                z[2 * part + i] = k2[j] * c[i];
                z[3 * part + i] = k3[j] * c[i];
                c[i] *= k0[j];
            });
            send(t, 0, all_, z);
            multiply(x_.all, size_, all_, z, h, false);
            return;
        }
        if (x_.cell == Cell::gru) {
            each([=](Index j, Index i) {
                z[i] = k1[j] * h[i];
                z[2 * part + i] = k2[j] * h[i];
            });
            multiply(x_.last, size_, size_, z + 2 * part, mixed, false);
            each([=](Index j, Index i) {
                z[part + i] = k3[j] * mixed[i];
                h[i] = k0[j] * h[i] + k4[j] * mixed[i];
            });
            send(t, 0, all_, z);
            multiply(x_.all, size_, 2 * size_, z, h, true);
            return;
        }
        each([=](Index j, Index i) {
            mixed[i] = k2[j] * h[i];
            z[i] = k1[j] * h[i];
            z[part + i] = k3[j] * mixed[i];
            z[2 * part + i] = k4[j] * mixed[i];
            h[i] *= k0[j];
        });
        send(t, 0, 2 * size_, z);
        send(t, 2 * size_, size_, mixed);
        multiply(x_.all, size_, all_, z, h, true);
    }

    void send(Index t, Index begin, Index units, const T *from) const {
        take_out(from, x_.steps, t, begin, units, all_, x_.sent);
    }

    void end() const {
        take_out(h_, 1, 0, 0, size_, size_, x_.new_h);
        if (x_.new_c != nullptr)
            take_out(c_, 1, 0, 0, size_, size_, x_.new_c);
    }

    const Recurrence<T> &x_;
    const Index size_, all_, sequence_, first_, probes_;
    T *h_, *c_, *mixed_, *z_;
    bool moving_;
};

template <class T> void push_task(const Recurrence<T> &x, Index task) { Task<T>(x, task).push(); }

template <class T> void pull_task(const Recurrence<T> &x, Index task) { Task<T>(x, task).pull(); }

}  // namespace gradcheck::GRADCHECK_ISA
