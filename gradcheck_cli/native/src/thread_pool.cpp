#include "thread_pool.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif

namespace gradcheck {
namespace {

// How often a thread looks for what it waits for before it sleeps: some ten microseconds, the price of waking up.
constexpr int patience = 2000;

inline void rest() {
#if defined(__x86_64__) && defined(__GNUC__)
    __builtin_ia32_pause();
#endif
}

template <class Ready> void look(const Ready &ready) {
    for (int i = 0; i < patience && !ready(); ++i)
        rest();
}

thread_local bool alone = false;
std::atomic<Index> most{1};

class Pool {
  public:
    void run(Index count, Index helpers, const std::function<void(Index)> &body) {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            while (static_cast<Index>(workers_.size()) < helpers)
                workers_.emplace_back([this] { serve(); }).detach();
            body_ = &body;
            next_ = 0;
            count_ = count;
            seats_ = helpers;
            failure_ = nullptr;
            ++round_;
        }
        wake_.notify_all();
        work();
        {
            std::lock_guard<std::mutex> lock(mutex_);
            seats_ = 0;
        }
        look([this] { return busy_ == 0; });
        std::unique_lock<std::mutex> lock(mutex_);
        done_.wait(lock, [this] { return busy_ == 0; });
        if (failure_)
            std::rethrow_exception(failure_);
    }

    std::mutex turn;  // held by the caller whose work the pool does

  private:
    void serve() {
        alone = true;
        std::size_t seen = 0;
        std::unique_lock<std::mutex> lock(mutex_);
        for (;;) {
            lock.unlock();
            look([&] { return round_ != seen; });
            lock.lock();
            wake_.wait(lock, [&] { return round_ != seen; });
            seen = round_;
            if (seats_ == 0)
                continue;
            --seats_;
            ++busy_;
            lock.unlock();
            work();
            lock.lock();
            if (--busy_ == 0)
                done_.notify_one();
        }
    }

    void work() {
        try {
            for (Index i = next_++; i < count_; i = next_++)
                (*body_)(i);
        } catch (...) {
            next_ = count_;
            std::lock_guard<std::mutex> lock(mutex_);
            failure_ = std::current_exception();
        }
    }

    std::mutex mutex_;
    std::condition_variable wake_, done_;
    std::vector<std::thread> workers_;
    const std::function<void(Index)> *body_ = nullptr;
    Index count_ = 0, seats_ = 0;
    std::exception_ptr failure_;
    // What all threads write, or look at while they wait, lies on cache lines of its own.
    alignas(64) std::atomic<Index> next_{0};
    alignas(64) std::atomic<Index> busy_{0};
    alignas(64) std::atomic<std::size_t> round_{0};
};

// Never destroyed, since its threads outlive static objects; replaced after a fork, which takes no threads along.
Pool *pool = nullptr;
std::once_flag started;

void start_pool() {
    pool = new Pool;
#if defined(__unix__) || defined(__APPLE__)
    pthread_atfork(nullptr, nullptr, [] { pool = new Pool; });
#endif
}

}  // namespace

Index deserved(double multiplications) {
    constexpr double worth = 4e5;
    return static_cast<Index>(std::min(static_cast<double>(threads()), 1 + multiplications / worth));
}

Index threads() { return alone ? 1 : most.load(std::memory_order_relaxed); }

void set_threads(Index count) { most = count < 1 ? 1 : count; }

bool set_single_threaded(bool on) {
    const bool before = alone;
    alone = on;
    return before;
}

void for_each(Index count, const std::function<void(Index)> &body) {
    const Index helpers = (count < threads() ? count : threads()) - 1;
    if (helpers > 0) {
        std::call_once(started, start_pool);
        std::unique_lock<std::mutex> turn(pool->turn, std::try_to_lock);
        if (turn.owns_lock()) {
            pool->run(count, helpers, body);
            return;
        }
    }
    for (Index i = 0; i < count; ++i)
        body(i);
}

}  // namespace gradcheck
