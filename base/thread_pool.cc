#include "base/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <bitset>
#include <exception>
#include <span>
#include <utility>

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

std::unique_ptr<ThreadPool::CutThreads> ThreadPool::checked(const Cut& cut, int num_threads) {
  auto checked = std::make_unique<CutThreads>();
  CutThreads& result = *checked;
  result.place_of.assign(static_cast<std::size_t>(num_threads), -1);
  double shares = 0;
  for (const Group& group : cut) {
    if (group.threads.empty()) throw Error("a group of threads is empty");
    if (!(group.share > 0)) throw Error("a group of threads has a share of {}", group.share);
    CutThreads::Range range{.begin = static_cast<int>(result.members.size()),
                            .first_share = shares};
    for (const int thread : group.threads) {
      if (thread < 0 || thread >= num_threads)
        throw Error("a group has thread {} of {}", thread, num_threads);
      int& place = result.place_of[static_cast<std::size_t>(thread)];
      if (place >= 0) throw Error("thread {} is in two groups", thread);
      place = static_cast<int>(result.members.size());
      result.members.push_back(thread);
      result.group_of.push_back(static_cast<int>(result.groups.size()));
    }
    shares += group.share;
    range.end = static_cast<int>(result.members.size());
    range.end_share = shares;
    result.groups.push_back(range);
  }
  if (result.groups.empty()) throw Error("threads are cut into no group");
  for (CutThreads::Range& range : result.groups) {
    range.first_share /= shares;
    range.end_share /= shares;
  }
  result.groups.back().end_share = 1;
  result.rounds = std::make_unique<Rounds[]>(result.groups.size());
  return checked;
}

ThreadPool::ThreadPool(std::vector<int> cores, std::function<void()> on_start,
                       std::vector<Cut> cuts)
    : cores_(std::move(cores)),
      on_start_(std::move(on_start)),
      threads_(cores_.size()),
      shares_(cores_.size()) {
  if (cores_.empty()) throw Error("a thread pool needs at least one core");
  if (cuts.empty()) {
    Group all;
    for (int thread = 0; thread < size(); ++thread) all.threads.push_back(thread);
    cuts.push_back({all});
  }
  for (const Cut& cut : cuts) cuts_.push_back(checked(cut, size()));
  present_ = cuts_.front().get();
  callers_index_ = take_index();
  try {
    for (const auto& cut : cuts_) start_threads_of(*cut);
  } catch (...) {
    end_threads();
    throw;
  }
}

ThreadPool::~ThreadPool() { end_threads(); }

void ThreadPool::end_threads() {
  {
    const std::lock_guard lock(sleep_mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  wake_left_out_.notify_all();
  for (Started& started : threads_) {
    if (!started.thread.joinable()) continue;
    started.thread.join();
    give_back_index(started.index);
  }
  give_back_index(callers_index_);
}

void ThreadPool::start_threads_of(const CutThreads& cut) {
  for (std::size_t place = 1; place < cut.members.size(); ++place) {
    const int thread = cut.members[place];
    Started& started = threads_[static_cast<std::size_t>(thread)];
    if (started.thread.joinable()) continue;
    started.index = take_index();
    try {
      started.thread = std::thread([this, thread, index = started.index] {
        current_thread_index = index;
        thread_main(thread);
      });
    } catch (...) {
      give_back_index(started.index);
      throw;
    }
  }
}

int ThreadPool::add(const Cut& cut) {
  cuts_.push_back(checked(cut, size()));
  start_threads_of(*cuts_.back());
  return static_cast<int>(cuts_.size()) - 1;
}

int ThreadPool::take_index() {
  const std::lock_guard lock(indices_mutex);
  for (int index = 1; index < max_threads; ++index) {
    const auto bit = static_cast<std::size_t>(index);
    if (indices_taken[bit]) continue;
    indices_taken.set(bit);
    return index;
  }
  throw Error("more than {} threads in one process; use fewer with --threads", max_threads);
}

void ThreadPool::give_back_index(int index) {
  const std::lock_guard lock(indices_mutex);
  indices_taken.reset(static_cast<std::size_t>(index));
}

int ThreadPool::thread_index() { return current_thread_index; }

void ThreadPool::enter() {
  current_thread_index = callers_index_;
  bound_to_ = cores_[static_cast<std::size_t>(cut().members.front())];
  bind_to_core(bound_to_);
}

void ThreadPool::follow(int number) {
  const CutThreads* next = cuts_[static_cast<std::size_t>(number)].get();
  if (next == present_.load(std::memory_order_relaxed)) return;
  bool anyone_sleeps = false;
  {
    const std::lock_guard lock(sleep_mutex_);
    present_.store(next, std::memory_order_release);
    anyone_sleeps = num_left_out_ > 0;
  }
  if (anyone_sleeps) wake_left_out_.notify_all();
  const int core = cores_[static_cast<std::size_t>(next->members.front())];
  if (bound_to_ < 0 || bound_to_ == core) return;
  bound_to_ = core;
  bind_to_core(core);
}

void ThreadPool::run(std::int64_t num_jobs, FunctionRef<void(std::int64_t)> job) {
  if (num_jobs <= 0) return;
  const CutThreads& cut = this->cut();
  job_ = &job;
  const auto part = [&](double share) {
    return static_cast<std::int64_t>(static_cast<double>(num_jobs) * share);
  };
  for (const CutThreads::Range& group : cut.groups) {
    const std::int64_t first = part(group.first_share);
    const std::int64_t jobs = (group.end_share < 1 ? part(group.end_share) : num_jobs) - first;
    const std::int64_t threads = group.end - group.begin;
    for (std::int64_t i = 0; i < threads; ++i) {
      Share& share = shares_[static_cast<std::size_t>(group.begin + i)];
      share.next.store(first + jobs * i / threads, std::memory_order_relaxed);
      share.end = first + jobs * (i + 1) / threads;
    }
  }
  const bool alone = num_jobs == 1 || cut.members.size() == 1;
  const std::span<Rounds> rounds(cut.rounds.get(), cut.groups.size());
  if (!alone) {
    bool anyone_sleeps = false;
    {
      const std::lock_guard lock(sleep_mutex_);
      for (Rounds& group : rounds) {
        const std::uint64_t last = group.state.load(std::memory_order_relaxed);
        group.state.store((last & ~Rounds::closed) + Rounds::one, std::memory_order_release);
      }
      anyone_sleeps = num_sleeping_ > 0;
    }
    if (anyone_sleeps) wake_.notify_all();
  }
  work(cut, 0);
  if (!alone) {
    for (Rounds& group : rounds) group.state.fetch_or(Rounds::closed, std::memory_order_acq_rel);
    int spins = 0;
    for (const Rounds& group : rounds) {
      while ((group.state.load(std::memory_order_acquire) & Rounds::threads) != 0) {
        pause_cpu();
        if (++spins > spins_before_yield) sched_yield();
      }
    }
  }
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void ThreadPool::take_jobs(Share& share) {
  while (true) {
    const std::int64_t mine = share.next.fetch_add(1, std::memory_order_relaxed);
    if (mine >= share.end) return;
    try {
      (*job_)(mine);
    } catch (...) {
      const std::lock_guard lock(failure_mutex_);
      if (!failure_) failure_ = std::current_exception();
    }
  }
}

void ThreadPool::work(const CutThreads& cut, int place) {
  const int num_groups = static_cast<int>(cut.groups.size());
  const int own = cut.group_of[static_cast<std::size_t>(place)];
  for (int i = 0; i < num_groups; ++i) {
    const CutThreads::Range& group = cut.groups[static_cast<std::size_t>((own + i) % num_groups)];
    const int threads = group.end - group.begin;
    // Those of other groups begin with different ones.
    const int from = i == 0 ? place - group.begin : place % threads;
    for (int offset = 0; offset < threads; ++offset) {
      const int next = group.begin + (from + offset) % threads;
      take_jobs(shares_[static_cast<std::size_t>(next)]);
    }
  }
}

void ThreadPool::sleep_left_out(int thread) {
  std::unique_lock lock(sleep_mutex_);
  ++num_left_out_;
  wake_left_out_.wait(
      lock, [&] { return stop_ || cut().place_of[static_cast<std::size_t>(thread)] > 0; });
  --num_left_out_;
}

void ThreadPool::serve(const CutThreads& cut, int place) {
  Rounds& rounds =
      cut.rounds[static_cast<std::size_t>(cut.group_of[static_cast<std::size_t>(place)])];
  std::uint64_t seen = 0;  // number of the last round that this thread worked on or missed
  const auto news = [&] {
    return stop_ || present_.load(std::memory_order_relaxed) != &cut ||
           rounds.state.load(std::memory_order_acquire) / Rounds::one != seen;
  };
  while (true) {
    for (int spins = 0; !news() && spins < spins_before_sleep; ++spins) pause_cpu();
    if (!news()) {
      std::unique_lock lock(sleep_mutex_);
      ++num_sleeping_;
      wake_.wait(lock, news);
      --num_sleeping_;
    }
    if (stop_ || present_.load(std::memory_order_acquire) != &cut) return;
    std::uint64_t state = rounds.state.load(std::memory_order_acquire);
    seen = state / Rounds::one;
    bool joined = false;
    while (!joined && (state & Rounds::closed) == 0 && state / Rounds::one == seen) {
      joined = rounds.state.compare_exchange_weak(state, state + 1, std::memory_order_acq_rel);
    }
    if (!joined) continue;
    work(cut, place);
    rounds.state.fetch_sub(1, std::memory_order_release);
  }
}

void ThreadPool::thread_main(int thread) {
  bind_to_core(cores_[static_cast<std::size_t>(thread)]);
  if (on_start_) on_start_();
  while (!stop_) {
    const CutThreads& cut = *present_.load(std::memory_order_acquire);
    const int place = cut.place_of[static_cast<std::size_t>(thread)];
    if (place > 0) {
      serve(cut, place);
    } else {
      sleep_left_out(thread);
    }
  }
}

}  // namespace sluice
