#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
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

/// Pinned threads that compute together, cut into groups in one or several ways. The thread
/// that calls run() is one of them.
class ThreadPool {
 public:
  /// Threads that share a part of each round's jobs. What they read first lies near to them.
  struct Group {
    std::vector<int> threads;  ///< by their places among the pool's cores
    double share = 1;          ///< of the jobs; those of a cut add up to 1

    bool operator==(const Group&) const = default;
  };
  /// Groups that have no thread twice; threads in none of them sleep.
  using Cut = std::vector<Group>;

  /// One thread a core; all but one are started and bound here and call `on_start` first. The
  /// caller of run() binds itself with enter(). Of several ways to cut the threads the first one
  /// holds until follow() says another; without any, all threads are one group. Throws Error when a
  /// cut is not possible.
  explicit ThreadPool(std::vector<int> cores, std::function<void()> on_start = {},
                      std::vector<Cut> cuts = {});
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  /// In all, whatever cut holds.
  int size() const { return static_cast<int>(cores_.size()); }
  /// That work by the present cut.
  int num_threads() const { return static_cast<int>(cut().members.size()); }

  int num_groups() const { return static_cast<int>(cut().groups.size()); }

  /// Makes the calling thread the first one of the present cut: binds it and gives it its index.
  void enter();

  /// One more way to cut the threads; its number for follow(). Those that had no work by any cut
  /// are started. While no round runs. Throws Error when the cut is not possible.
  int add(const Cut& cut);

  /// From now on the cut of this number holds. Between rounds, by the thread that calls run(),
  /// which it binds to the cut's first core. Threads that get work again wake with the next round.
  void follow(int number);

  /// Calls job(i) once for each i in [0, num_jobs) and returns when all are done. Each group has
  /// its share of neighbouring jobs, and each of its threads works through its own run of them
  /// (what it reads next in memory lies behind what it reads now), then helps its own group, then
  /// the others. An exception of a job is thrown here, after the others have ended. One caller at a
  /// time.
  void run(std::int64_t num_jobs, FunctionRef<void(std::int64_t)> job);

  /// A small number unique to each live pool thread of the process (0: a thread of no pool).
  static int thread_index();
  /// Every thread_index() is below this.
  static constexpr int max_threads = 1024;

 private:
  /// Threads of a group take part in its rounds. One that comes too late for a round is not waited
  /// for: on a busy machine it may have no core at the moment.
  struct alignas(64) Rounds {
    /// Number of the last round, whether it is closed to newcomers, and how many threads work on
    /// it.
    std::atomic<std::uint64_t> state{closed};
    static constexpr std::uint64_t one = 1U << 16;
    static constexpr std::uint64_t closed = 1U << 15;
    static constexpr std::uint64_t threads = closed - 1;
  };
  /// A cut as rounds need it.
  struct CutThreads {
    struct Range {
      int begin = 0;  ///< among `members`
      int end = 0;
      double first_share = 0;  ///< of the jobs, those before the group's
      double end_share = 1;
    };
    std::vector<int> members;   ///< threads, group by group; the first one is the caller
    std::vector<int> place_of;  ///< by thread: where it is among `members`, or -1
    std::vector<int> group_of;  ///< by place
    std::vector<Range> groups;
    std::unique_ptr<Rounds[]> rounds;  ///< one a group
  };
  /// The jobs of one thread that are left.
  struct alignas(64) Share {
    std::atomic<std::int64_t> next{0};
    std::int64_t end = 0;
  };

  const CutThreads& cut() const { return *present_.load(std::memory_order_relaxed); }
  static std::unique_ptr<CutThreads> checked(const Cut& cut, int num_threads);
  /// Starts the threads that a cut gives work; its first one is the caller's.
  void start_threads_of(const CutThreads& cut);
  /// And gives back all indices.
  void end_threads();
  void thread_main(int thread);
  /// Takes part in rounds by a cut until another one holds.
  void serve(const CutThreads& cut, int place);
  /// Until it has work by the present cut.
  void sleep_left_out(int thread);
  /// Through the jobs of all, the own ones first.
  void work(const CutThreads& cut, int place);
  void take_jobs(Share& share);

  /// The smallest free thread index, which nobody else has until give_back_index(). Throws Error
  /// when there is none.
  static int take_index();
  static void give_back_index(int index);

  std::vector<int> cores_;
  std::function<void()> on_start_;
  std::vector<std::unique_ptr<const CutThreads>> cuts_;  ///< the callers' alone
  std::atomic<const CutThreads*> present_{nullptr};      ///< which cut holds
  int bound_to_ = -1;                                    ///< where the caller is
  int callers_index_ = 0;
  /// By their places among the cores; those that have no work by any cut are not started.
  struct Started {
    std::thread thread;
    int index = 0;
  };
  std::vector<Started> threads_;

  const FunctionRef<void(std::int64_t)>* job_ = nullptr;
  std::vector<Share> shares_;  ///< by place
  std::exception_ptr failure_;
  std::mutex failure_mutex_;

  std::mutex sleep_mutex_;
  std::condition_variable wake_;  ///< of those that wait for a round
  std::condition_variable wake_left_out_;
  int num_sleeping_ = 0;
  int num_left_out_ = 0;
  std::atomic<bool> stop_{false};
};

}  // namespace sluice
