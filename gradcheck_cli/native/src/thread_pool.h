// Threads that wait for work; started when first needed, owned by the process.
#pragma once

#include <functional>

#include "product.h"

namespace gradcheck {

// Runs body(0) ... body(count - 1), each once, here and on other threads; returns when all are done.  Runs them
// all here when the calling thread is single-threaded or the pool is busy with another caller.
void for_each(Index count, const std::function<void(Index)> &body);

// How many threads some work deserves: waking one costs as much as some multiplications.
Index deserved(double multiplications);

// Runs body(first, last) over all of [0, count), in a few runs for each of `helpers` threads.
template <class Body> void share(Index count, Index helpers, const Body &body) {
    const Index most = 4 * helpers, runs = helpers == 1 ? 1 : count < most ? count : most;
    for_each(runs, [&](Index i) { body(count * i / runs, count * (i + 1) / runs); });
}

// How many threads a call from this thread may use.
Index threads();
void set_threads(Index count);

// Whether calls from this thread stay on it; gives what was set before.
bool set_single_threaded(bool on);

}  // namespace gradcheck
