#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace sluice {

/// A callable by reference, without allocation; it must outlive the call.
template <typename Signature>
class FunctionRef;
template <typename R, typename... Args>
class FunctionRef<R(Args...)> {
 public:
  // NOLINTBEGIN(google-explicit-constructor,bugprone-forwarding-reference-overload): a view of any
  // callable
  template <typename F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, FunctionRef>) FunctionRef(F&& callable)
      : object_(const_cast<void*>(static_cast<const void*>(std::addressof(callable)))),
        call_([](void* object, Args... args) -> R {
          return (*static_cast<std::remove_reference_t<F>*>(object))(std::forward<Args>(args)...);
        }) {}
  // NOLINTEND(google-explicit-constructor,bugprone-forwarding-reference-overload)
  R operator()(Args... args) const { return call_(object_, std::forward<Args>(args)...); }

 private:
  void* object_;
  R (*call_)(void*, Args...);
};

/// The pinned threads of one compute domain. The thread that calls run() is one of them (thread 0).
class ThreadPool {
 public:
  /// One thread a core; threads 1.. are started and bound here and call `on_start` first, thread 0
  /// binds itself with enter().
  explicit ThreadPool(std::vector<int> cores, std::function<void()> on_start = {});
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(cores_.size()); }

  /// Makes the calling thread this pool's thread 0: binds it and gives it its index.
  void enter();

  /// Calls job(i) once for each i in [0, num_jobs) and returns when all are done. Each thread works
  /// through its own run of neighbouring jobs (what it reads next in memory lies behind what it
  /// reads now), then helps the others with theirs. An exception of a job is thrown here, after the
  /// others have ended. One caller at a time.
  void run(std::int64_t num_jobs, FunctionRef<void(std::int64_t)> job);

  /// A small number unique to each live pool thread of the process (0: a thread of no pool).
  static int thread_index();
  /// Every thread_index() is below this.
  static constexpr int max_threads = 1024;

 private:
  void thread_main(int thread);
  void work(int thread);

  /// Takes `count` consecutive free thread indices. Throws Error when there are not as many.
  static int take_indices(int count);
  static void give_back_indices(int first, int count);

  std::vector<int> cores_;
  std::function<void()> on_start_;
  int first_index_ = 0;
  std::vector<std::thread> threads_;

  // One round of jobs. Threads take job numbers until none are left. A thread that comes too late
  // for a round is not waited for: on a busy machine it may have no core at the moment.
  struct alignas(64) Share {
    std::atomic<std::int64_t> next{0};
    std::int64_t end = 0;
  };
  const FunctionRef<void(std::int64_t)>* job_ = nullptr;
  std::vector<Share> shares_;  ///< one a thread
  /// Number of the round, whether it is closed to newcomers, and how many threads work on it.
  std::atomic<std::uint64_t> round_{round_closed};
  static constexpr std::uint64_t round_one = 1U << 16;
  static constexpr std::uint64_t round_closed = 1U << 15;
  static constexpr std::uint64_t round_threads = round_closed - 1;
  std::exception_ptr failure_;
  std::mutex failure_mutex_;

  std::mutex sleep_mutex_;
  std::condition_variable wake_;
  int num_sleeping_ = 0;
  std::atomic<bool> stop_{false};
};

}  // namespace sluice
