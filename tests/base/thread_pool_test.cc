#include "base/thread_pool.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <barrier>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>

#include "base/cpu.h"
#include "base/error.h"

namespace sluice {
namespace {

/// So many threads on the machine's cores in turn; more threads than cores share them.
std::vector<int> cores_for(int threads) {
  const std::vector<int> available = read_cpu_topology().cores;
  std::vector<int> cores(static_cast<std::size_t>(threads));
  for (std::size_t i = 0; i < cores.size(); ++i) cores[i] = available[i % available.size()];
  return cores;
}

/// How often each job of a round ran.
std::vector<int> run_and_count(ThreadPool& pool, std::int64_t num_jobs) {
  std::vector<std::atomic<int>> ran(static_cast<std::size_t>(num_jobs));
  pool.run(num_jobs, [&](std::int64_t job) { ++ran[static_cast<std::size_t>(job)]; });
  return {ran.begin(), ran.end()};
}

class ThreadPoolTest : public ::testing::TestWithParam<int> {};

TEST_P(ThreadPoolTest, RunsEveryJobExactlyOnce) {
  ThreadPool pool(cores_for(GetParam()));
  EXPECT_EQ(pool.num_threads(), GetParam());
  for (const std::int64_t jobs : {0, 1, 2, 3, 16, 17, 1000, 20'000}) {
    EXPECT_EQ(run_and_count(pool, jobs), std::vector<int>(static_cast<std::size_t>(jobs), 1));
  }
}

TEST_P(ThreadPoolTest, ManyShortRoundsOfAnySizeLoseNothing) {
  ThreadPool pool(cores_for(GetParam()));
  std::uint32_t state = 1;
  std::int64_t expected = 0;
  std::atomic<std::int64_t> sum = 0;
  for (int round = 0; round < 3000; ++round) {
    state = state * 1664525U + 1013904223U;
    const std::int64_t jobs = (state >> 16) % 41;
    std::atomic<std::int64_t> done = 0;  // gone after the round: a late thread must not touch it
    pool.run(jobs, [&](std::int64_t job) {
      sum += job;
      ++done;
    });
    ASSERT_EQ(done, jobs) << "round " << round;
    expected += jobs * (jobs - 1) / 2;
  }
  EXPECT_EQ(sum, expected);
}

TEST_P(ThreadPoolTest, WakesAfterItHasSlept) {
  ThreadPool pool(cores_for(GetParam()));
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // longer than the threads watch
    ASSERT_EQ(run_and_count(pool, 100), std::vector<int>(100, 1)) << "round " << round;
  }
}

TEST_P(ThreadPoolTest, ThrowsAJobsExceptionAfterTheOthersAndGoesOn) {
  ThreadPool pool(cores_for(GetParam()));
  for (const std::int64_t bad : {0, 37, 99}) {
    std::vector<std::atomic<int>> ran(100);
    try {
      pool.run(100, [&](std::int64_t job) {
        ++ran[static_cast<std::size_t>(job)];
        if (job == bad) throw Error("job {} is bad", job);
      });
      FAIL() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.what(), "job " + std::to_string(bad) + " is bad");
    }
    EXPECT_EQ(std::vector<int>(ran.begin(), ran.end()), std::vector<int>(100, 1));
    EXPECT_EQ(run_and_count(pool, 50), std::vector<int>(50, 1)) << "after an exception";
  }
}

TEST_P(ThreadPoolTest, ThrowsOneExceptionWhenEveryJobThrows) {
  ThreadPool pool(cores_for(GetParam()));
  for (int round = 0; round < 20; ++round) {
    EXPECT_THROW(pool.run(30, [](std::int64_t) { throw std::runtime_error("all are bad"); }),
                 std::runtime_error);
  }
  EXPECT_EQ(run_and_count(pool, 30), std::vector<int>(30, 1));
}

TEST_P(ThreadPoolTest, MakesTheJobsWritesVisible) {
  ThreadPool pool(cores_for(GetParam()));
  std::vector<std::int64_t> squares(500);
  for (int round = 1; round <= 50; ++round) {
    pool.run(500, [&](std::int64_t job) { squares[static_cast<std::size_t>(job)] = job * round; });
    ASSERT_EQ(std::accumulate(squares.begin(), squares.end(), std::int64_t{0}),
              std::int64_t{500 * 499 / 2} * round);
  }
}

TEST_P(ThreadPoolTest, GivesEachThreadItsOwnIndex) {
  std::mutex mutex;
  std::set<int> started;
  {
    ThreadPool pool(cores_for(GetParam()), [&] {
      const std::lock_guard lock(mutex);
      started.insert(ThreadPool::thread_index());
    });
    std::set<int> seen;
    std::thread caller([&] {  // a thread of its own: entering binds it for good
      pool.enter();
      EXPECT_GT(ThreadPool::thread_index(), 0);
      pool.run(1000, [&](std::int64_t) {
        const std::lock_guard lock(mutex);
        seen.insert(ThreadPool::thread_index());
      });
      const std::lock_guard lock(mutex);
      seen.insert(ThreadPool::thread_index());
    });
    caller.join();
    EXPECT_LE(seen.size(), static_cast<std::size_t>(GetParam()));
    EXPECT_FALSE(seen.contains(0));
    for (const int index : seen) EXPECT_LT(index, ThreadPool::max_threads);
  }
  EXPECT_EQ(started.size(), static_cast<std::size_t>(GetParam() - 1)) << "once a thread";
  EXPECT_EQ(ThreadPool::thread_index(), 0) << "this thread is in no pool";
}

INSTANTIATE_TEST_SUITE_P(Threads, ThreadPoolTest, ::testing::Values(1, 2, 3, 8, 17),
                         [](const auto& case_info) {
                           return std::to_string(case_info.param) + "Threads";
                         });

TEST(ThreadPoolsTest, TwoPoolsRunAtOnce) {
  ThreadPool first(cores_for(2));
  ThreadPool second(cores_for(3));
  const auto work = [](ThreadPool& pool) {
    for (int round = 0; round < 200; ++round) {
      ASSERT_EQ(run_and_count(pool, 40), std::vector<int>(40, 1));
    }
  };
  std::thread other([&] {
    second.enter();
    work(second);
  });
  work(first);
  other.join();
}

TEST(ThreadPoolsTest, ComeAndGoWithoutWork) {
  std::atomic<int> started = 0;
  for (int i = 1; i <= 10; ++i) {
    {
      const ThreadPool pool(cores_for(4), [&] { ++started; });
    }
    EXPECT_EQ(started, 3 * i);  // all had begun, and were waited for
  }
}

TEST(ThreadPoolsTest, NeedACore) { EXPECT_THROW(ThreadPool({}), Error); }

// More pools, one after the other, than there are thread indices.
TEST(ThreadPoolsTest, MayBeMadeAndUnmadeForever) {
  for (int made = 0; made < ThreadPool::max_threads + 100; made += 50) {
    ThreadPool pool(cores_for(50));
    ASSERT_EQ(run_and_count(pool, 10), std::vector<int>(10, 1));
  }
}

/// Which thread ran each of so many jobs, when all threads of the cut take part: none ends its
/// first job before as many have begun.
std::vector<int> threads_of_jobs(ThreadPool& pool, std::int64_t num_jobs) {
  std::barrier all(pool.num_threads());
  std::vector<int> of_job(static_cast<std::size_t>(num_jobs));
  pool.run(num_jobs, [&](std::int64_t job) {
    of_job[static_cast<std::size_t>(job)] = ThreadPool::thread_index();
    all.arrive_and_wait();
  });
  return of_job;
}

/// On a thread of its own, since entering binds for good.
void in_pool(ThreadPool& pool, const std::function<void()>& work) {
  std::thread caller([&] {
    pool.enter();
    work();
  });
  caller.join();
}

const std::vector<ThreadPool::Cut> cuts_of_four = {
    {{.threads = {0, 1, 2, 3}}},
    {{.threads = {0, 1}, .share = 0.5}, {.threads = {2, 3}, .share = 0.5}},
    {{.threads = {3}, .share = 0.25}, {.threads = {1, 2, 0}, .share = 0.75}},
    {{.threads = {0}, .share = 0.5}, {.threads = {1, 2, 3}, .share = 0.5}},
    {{.threads = {2}}},
    {{.threads = {1}, .share = 0.9}, {.threads = {2}, .share = 0.1}},
};

TEST(ThreadPoolCutsTest, EveryCutRunsEveryJobOnce) {
  ThreadPool pool(cores_for(4), {}, cuts_of_four);
  in_pool(pool, [&] {
    for (int round = 0; round < 300; ++round) {
      const auto cut = static_cast<std::size_t>(round * 7 % 6);
      pool.follow(static_cast<int>(cut));
      int threads = 0;
      for (const ThreadPool::Group& group : cuts_of_four[cut])
        threads += static_cast<int>(group.threads.size());
      ASSERT_EQ(pool.num_threads(), threads);
      const std::int64_t jobs = round % 23;
      ASSERT_EQ(run_and_count(pool, jobs), std::vector<int>(static_cast<std::size_t>(jobs), 1));
    }
  });
}

TEST(ThreadPoolCutsTest, GroupsBeginWithTheirOwnShare) {
  ThreadPool pool(cores_for(4), {}, cuts_of_four);
  in_pool(pool, [&] {
    pool.follow(1);
    const std::vector<int> halves = threads_of_jobs(pool, 4);
    pool.follow(2);
    const std::vector<int> quarter = threads_of_jobs(pool, 4);
    pool.follow(1);
    EXPECT_EQ(threads_of_jobs(pool, 4), halves);
    EXPECT_EQ(std::set<int>(halves.begin(), halves.end()).size(), 4U);
    // The caller is the first of each cut: here thread 0, there thread 3.
    EXPECT_EQ(halves[0], ThreadPool::thread_index());
    EXPECT_EQ(quarter[0], ThreadPool::thread_index());
    EXPECT_EQ(quarter[1], halves[1]) << "thread 1";
    EXPECT_EQ(quarter[2], halves[2]) << "thread 2";
    EXPECT_NE(quarter[3], halves[0]) << "thread 0, which another one now is";
    // One thread has half of the jobs: another group's third thread helps it.
    pool.follow(3);
    const std::vector<int> helped = threads_of_jobs(pool, 4);
    EXPECT_TRUE(helped[0] == ThreadPool::thread_index() || helped[1] == ThreadPool::thread_index())
        << "the helper may come first";
    EXPECT_EQ(std::set<int>(helped.begin(), helped.end()).size(), 4U);
  });
}

TEST(ThreadPoolCutsTest, ThreadsThatAreLeftOutRunNothing) {
  ThreadPool pool(cores_for(4), {}, cuts_of_four);
  in_pool(pool, [&] {
    pool.follow(0);
    const std::vector<int> all = threads_of_jobs(pool, 4);
    pool.follow(5);
    std::mutex mutex;
    std::set<int> seen;
    for (int round = 0; round < 200; ++round) {
      pool.run(100, [&](std::int64_t) {
        const std::lock_guard lock(mutex);
        seen.insert(ThreadPool::thread_index());
      });
    }
    EXPECT_FALSE(seen.contains(all[3])) << "thread 3 is in no group";
    EXPECT_LE(seen.size(), 2U);
  });
}

TEST(ThreadPoolCutsTest, TheCallerGoesToTheCutsFirstCore) {
  const std::vector<int> cores = cores_for(4);
  ThreadPool pool(cores, {}, cuts_of_four);
  in_pool(pool, [&] {
    for (const std::size_t cut : {0U, 2U, 4U, 1U, 5U}) {
      pool.follow(static_cast<int>(cut));
      cpu_set_t set;
      ASSERT_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
      const int thread = cuts_of_four[cut].front().threads.front();
      EXPECT_EQ(CPU_COUNT(&set), 1);
      EXPECT_TRUE(CPU_ISSET(cores[static_cast<std::size_t>(thread)], &set)) << cut;
    }
  });
}

TEST(ThreadPoolCutsTest, MayBeAddedBetweenRounds) {
  std::atomic<int> started = 0;
  std::optional<ThreadPool> made(
      std::in_place, cores_for(4), [&] { ++started; },
      std::vector<ThreadPool::Cut>{cuts_of_four[4]});
  ThreadPool& pool = *made;
  in_pool(pool, [&] {
    const int only_two = 0;
    EXPECT_EQ(threads_of_jobs(pool, 1).size(), 1U);
    EXPECT_EQ(started, 0) << "one thread is the caller's";
    const int two_groups = pool.add(cuts_of_four[5]);  // threads 1 and 2, of which 1 calls
    EXPECT_EQ(pool.num_threads(), 1) << "it holds once it is followed";
    pool.follow(two_groups);
    const std::vector<int> two = threads_of_jobs(pool, 2);
    EXPECT_EQ(started, 1) << "thread 2";
    const int all = pool.add(cuts_of_four[0]);
    EXPECT_EQ(pool.add(cuts_of_four[1]), all + 1);
    pool.follow(all);
    const std::vector<int> four = threads_of_jobs(pool, 4);
    EXPECT_EQ(started, 3) << "0 calls";
    EXPECT_EQ(std::set<int>(four.begin(), four.end()).size(), 4U);
    EXPECT_EQ(four[2], two[1]) << "thread 2 keeps its index";
    for (int round = 0; round < 100; ++round) {
      pool.follow(round % (all + 2));
      ASSERT_EQ(run_and_count(pool, 9), std::vector<int>(9, 1));
    }
    pool.follow(only_two);
    EXPECT_EQ(pool.num_threads(), 1);
    EXPECT_THROW(pool.add({{.threads = {4}}}), Error);
    EXPECT_EQ(pool.add(cuts_of_four[2]), all + 2) << "what is refused is not counted";
  });
  made.reset();  // waits for all that were started
  EXPECT_EQ(started, 4) << "thread 0 has work of its own by the last cut";
}

TEST(ThreadPoolCutsTest, RefusesCutsThatCannotBe) {
  const auto make = [](const ThreadPool::Cut& cut) { ThreadPool(cores_for(2), {}, {cut}); };
  EXPECT_THROW(make({}), Error);
  EXPECT_THROW(make({{.threads = {}}}), Error);
  EXPECT_THROW(make({{.threads = {0, 2}}}), Error);
  EXPECT_THROW(make({{.threads = {-1}}}), Error);
  EXPECT_THROW(make({{.threads = {0}, .share = 0.5}, {.threads = {0}, .share = 0.5}}), Error);
  EXPECT_THROW(make({{.threads = {0}, .share = 0}}), Error);
}

}  // namespace
}  // namespace sluice
