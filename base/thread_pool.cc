#include "base/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <bitset>
#include <exception>

#include "base/error.h"
#include "base/log.h"

namespace sluice {
namespace {

/// How long a thread watches for the next round before it sleeps: longer than the gap between two
/// tasks, shorter than anyone would notice.
constexpr int spins_before_sleep = 5000;
/// How long the caller watches for the others to end before it lets other threads have the core:
/// when there are more threads than cores, one of them may be what it waits for.
constexpr int spins_before_yield = 500;

thread_local int current_thread_index = 0;

/// Which indices live threads have; index 0 stands for the threads of no pool.
std::mutex indices_mutex;
std::bitset<ThreadPool::max_threads> indices_taken{1};

void bind_to_core(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  if (pthread_setaffinity_np(pthread_self(), sizeof(set), &set) != 0) {
    logger().warn("cannot bind a thread to core {}; it runs where the system puts it", core);
  }
}

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

ThreadPool::ThreadPool(std::vector<int> cores, std::function<void()> on_start)
    : cores_(std::move(cores)), on_start_(std::move(on_start)), shares_(cores_.size()) {
  if (cores_.empty()) throw Error("a thread pool needs at least one core");
  first_index_ = take_indices(num_threads());
  for (int thread = 1; thread < num_threads(); ++thread) {
    threads_.emplace_back([this, thread] { thread_main(thread); });
  }
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(sleep_mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  give_back_indices(first_index_, num_threads());
}

int ThreadPool::take_indices(int count) {
  const std::lock_guard lock(indices_mutex);
  int free = 0;  // indices in a row that are free, up to `index`
  for (int index = 0; index < max_threads; ++index) {
    free = indices_taken[static_cast<std::size_t>(index)] ? 0 : free + 1;
    if (free < count) continue;
    const int first = index - count + 1;
    for (int i = first; i <= index; ++i) indices_taken.set(static_cast<std::size_t>(i));
    return first;
  }
  throw Error("more than {} threads in one process; use fewer with --threads", max_threads);
}

void ThreadPool::give_back_indices(int first, int count) {
  const std::lock_guard lock(indices_mutex);
  for (int i = first; i < first + count; ++i) indices_taken.reset(static_cast<std::size_t>(i));
}

int ThreadPool::thread_index() { return current_thread_index; }

void ThreadPool::enter() {
  current_thread_index = first_index_;
  bind_to_core(cores_[0]);
}

void ThreadPool::run(std::int64_t num_jobs, FunctionRef<void(std::int64_t)> job) {
  if (num_jobs <= 0) return;
  job_ = &job;
  for (std::int64_t thread = 0; thread < num_threads(); ++thread) {
    Share& share = shares_[static_cast<std::size_t>(thread)];
    share.next.store(num_jobs * thread / num_threads(), std::memory_order_relaxed);
    share.end = num_jobs * (thread + 1) / num_threads();
  }
  if (num_jobs > 1 && !threads_.empty()) {
    const std::uint64_t last = round_.load(std::memory_order_relaxed);
    bool anyone_sleeps = false;
    {
      const std::lock_guard lock(sleep_mutex_);
      round_.store((last & ~round_closed) + round_one, std::memory_order_release);
      anyone_sleeps = num_sleeping_ > 0;
    }
    if (anyone_sleeps) wake_.notify_all();
  }
  work(0);
  round_.fetch_or(round_closed, std::memory_order_acq_rel);
  for (int spins = 0; (round_.load(std::memory_order_acquire) & round_threads) != 0; ++spins) {
    pause_cpu();
    if (spins > spins_before_yield) sched_yield();
  }
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void ThreadPool::work(int thread) {
  for (int offset = 0; offset < num_threads(); ++offset) {
    Share& share = shares_[static_cast<std::size_t>((thread + offset) % num_threads())];
    while (true) {
      const std::int64_t mine = share.next.fetch_add(1, std::memory_order_relaxed);
      if (mine >= share.end) break;
      try {
        (*job_)(mine);
      } catch (...) {
        const std::lock_guard lock(failure_mutex_);
        if (!failure_) failure_ = std::current_exception();
      }
    }
  }
}

void ThreadPool::thread_main(int thread) {
  current_thread_index = first_index_ + thread;
  bind_to_core(cores_[static_cast<std::size_t>(thread)]);
  if (on_start_) on_start_();
  std::uint64_t seen = 0;  // number of the last round that this thread worked on or missed
  const auto news = [&] {
    return stop_ || round_.load(std::memory_order_acquire) / round_one != seen;
  };
  while (true) {
    for (int spins = 0; !news() && spins < spins_before_sleep; ++spins) pause_cpu();
    if (!news()) {
      std::unique_lock lock(sleep_mutex_);
      ++num_sleeping_;
      wake_.wait(lock, news);
      --num_sleeping_;
    }
    if (stop_) return;
    std::uint64_t state = round_.load(std::memory_order_acquire);
    seen = state / round_one;
    bool joined = false;
    while (!joined && (state & round_closed) == 0 && state / round_one == seen) {
      joined = round_.compare_exchange_weak(state, state + 1, std::memory_order_acq_rel);
    }
    if (!joined) continue;
    work(thread);
    round_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace sluice
