#include "engine/measure/core_rates.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <map>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/median.h"
#include "base/memory.h"
#include "base/numa.h"
#include "base/thread_pool.h"
#include "codelets/kernels/probe.h"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;

/// Threads by their places among the cores.
using Threads = std::vector<int>;

/// 1, 2, 4 and so on, and all.
std::vector<int> counts_up_to(int all) {
  std::vector<int> counts;
  for (int count = 1; count < all; count *= 2) counts.push_back(count);
  counts.push_back(all);
  return counts;
}

/// What is measured with one thread pool, whose caller this is.
class CoreMeter {
 public:
  CoreMeter(const Topology& topology, DType dtype, std::uint64_t working_set_bytes)
      : pool_(topology.cores()), dtype_(dtype), working_set_bytes_(working_set_bytes) {
    const std::vector<int> cores = topology.cores();
    for (std::size_t thread = 0; thread < cores.size(); ++thread)
      threads_of_node_[topology.numa_node_of(cores[thread])].push_back(static_cast<int>(thread));
    pool_.enter();
  }

  CoreRates measure() {
    const Curve near(node_bandwidth());
    const double far = remote_bandwidth().value_or(near.at(pool_.size()));
    const Curve rounds(round_s());
    pool_.follow(0);
    return {.node_bandwidth = near,
            .remote_bandwidth = far,
            .round_s = rounds,
            .core_flop_per_s = GemmProbe(pool_, dtype_).measure() / pool_.size()};
  }

 private:
  const Threads& largest_node() const {
    const auto more = [](const auto& a, const auto& b) {
      return a.second.size() < b.second.size();
    };
    return std::max_element(threads_of_node_.begin(), threads_of_node_.end(), more)->second;
  }

  void follow(const Threads& threads) { pool_.follow(pool_.add({{.threads = threads}})); }

  std::vector<Curve::Point> node_bandwidth() {
    const Threads& node = largest_node();
    follow(node);
    ReadProbe probe(pool_, working_set_bytes_);  // touched by the node's own threads
    std::vector<Curve::Point> points;
    for (const int count : counts_up_to(static_cast<int>(node.size()))) {
      follow({node.begin(), node.begin() + count});
      points.push_back({static_cast<double>(count), median_of_three(probe)});
    }
    return points;
  }

  /// What the largest node's cores read of another node; nothing where there is none, or where the
  /// system refuses to say where memory lies.
  std::optional<double> remote_bandwidth() {
    if (threads_of_node_.size() < 2) return std::nullopt;
    const Threads& near = largest_node();
    const auto far = std::find_if(threads_of_node_.begin(), threads_of_node_.end(),
                                  [&](const auto& node) { return &node.second != &near; });
    Buffer buffer(ReadProbe::buffer_bytes(working_set_bytes_));
    try {
      interleave(buffer, {far->first});
    } catch (const Error& error) {
      logger().warn("{}; what cores read of other nodes is taken to be as fast as their own",
                    error.what());
      return std::nullopt;
    }
    follow(near);
    ReadProbe probe(pool_, std::move(buffer));
    return median_of_three(probe);
  }

  static double median_of_three(ReadProbe& probe) {
    return median({probe.measure(), probe.measure(), probe.measure()});
  }

  std::vector<Curve::Point> round_s() {
    constexpr int rounds = 2000;
    std::vector<Curve::Point> points;
    for (const int count : counts_up_to(pool_.size())) {
      Threads threads;
      for (int thread = 0; thread < count; ++thread) threads.push_back(thread);
      follow(threads);
      std::vector<double> seconds;
      for (int repetition = 0; repetition < 3; ++repetition) {
        const Clock::time_point start = Clock::now();
        for (int round = 0; round < rounds; ++round) pool_.run(count, [](std::int64_t) {});
        seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count() / rounds);
      }
      points.push_back({static_cast<double>(count), median(seconds)});
    }
    return points;
  }

  ThreadPool pool_;
  DType dtype_;
  std::uint64_t working_set_bytes_;
  std::map<int, Threads> threads_of_node_;
};

}  // namespace

CoreRates measure_core_rates(const Topology& topology, DType dtype,
                             std::uint64_t working_set_bytes) {
  std::optional<CoreRates> rates;
  std::exception_ptr failure;
  std::thread meter([&] {  // who calls a pool is bound for good
    try {
      rates = CoreMeter(topology, dtype, working_set_bytes).measure();
    } catch (...) {
      failure = std::current_exception();
    }
  });
  meter.join();
  if (failure) std::rethrow_exception(failure);
  return *rates;
}

}  // namespace sluice
