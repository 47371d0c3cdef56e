#include "engine/simulate/simulated_contention.h"

#include <simgrid/actor.h>
#include <simgrid/host.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <simgrid/s4u.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sluice {
namespace {

namespace s4u = simgrid::s4u;

/// What is on its way for a moment only waits for the link's latency.
constexpr double least_bytes = 65536;
/// After a kernel, until what waited for it is on its way: StarPU's workers look once a
/// microsecond.
constexpr double set_off_s = 2e-6;
/// More than any simulation lasts.
constexpr double endless_flops = 1e30;

/// The devices of platform.cc.
struct Worker {
  Device device;
  const char* host;
};
constexpr Worker gpu = {Device::gpu, "CUDA0"};
constexpr std::array workers = {gpu, Worker{Device::cpu, "CPU0"}};

class Rivalry {
 public:
  explicit Rivalry(const CostModel& costs)
      : of_({costs.interference(Phase::prefill), costs.interference(Phase::decode)}) {
    for (s4u::Link* link : s4u::Engine::get_instance()->get_all_links()) {
      const std::string_view name = link->get_cname();
      if (name.find("CUDA0") != std::string_view::npos || name.ends_with("GPU"))
        bandwidths_[link] = link->get_bandwidth();
    }
  }

  void enter(Phase phase) {
    phase_ = phase;
    update_link();
  }

  /// The calling actor's host computes, or does no longer: `change` is 1 or -1.
  void count_kernel(int change) {
    const auto* const found =
        std::find_if(workers.begin(), workers.end(), [](const Worker& worker) {
          return s4u::this_actor::get_host()->get_name() == worker.host;
        });
    if (found == workers.end()) return;
    kernels_.at(static_cast<std::size_t>(found->device)) += change;
    update_link();
    update_shared_cores();
  }

  /// Devices that share cores are two processes, of which one sends what the other's kernels have
  /// made over the connection that brings it its kernels.
  bool is_sender(const s4u::Host* host) const {
    return now().together > 1 && host->get_name() == gpu.host;
  }
  void sending_starts() { ++num_sent_; }
  void sending_ends() {
    if (--num_sent_ == 0) nothing_is_sent_->notify_all();
  }
  /// A kernel of a sender starts behind what the end of the one before it has set off.
  void wait_for_sending() {
    if (!is_sender(s4u::this_actor::get_host())) return;
    s4u::this_actor::sleep_for(set_off_s);
    const std::unique_lock<s4u::Mutex> lock(*sending_);
    while (num_sent_ > 0) nothing_is_sent_->wait(lock);
  }

  void transfer_starts() {
    if (num_transfers_++ > 0) return;
    for (const Worker& worker : workers) {
      if (auto rival = start_rival(worker, now().kernels_on(worker.device)))
        beside_transfers_.push_back(std::move(rival));
    }
  }
  void transfer_ends() {
    if (--num_transfers_ == 0) end(beside_transfers_);
  }

 private:
  using Rivals = std::vector<s4u::ExecPtr>;

  const Interference& now() const { return of_.at(static_cast<std::size_t>(phase_)); }

  /// What has a worker's kernels take so many times as long while it lasts; null where nothing
  /// does.
  static s4u::ExecPtr start_rival(const Worker& worker, double times) {
    s4u::Host* host = s4u::Host::by_name_or_null(worker.host);
    if (times <= 1 || host == nullptr) return nullptr;
    s4u::ExecPtr rival = s4u::Exec::init()->set_host(host)->set_flops_amount(endless_flops);
    rival->set_priority(times - 1)->start();
    return rival;
  }
  static void end(Rivals& rivals) {
    for (const s4u::ExecPtr& rival : std::exchange(rivals, {})) rival->cancel();
  }

  void update_shared_cores() {
    const bool both = kernels_[0] > 0 && kernels_[1] > 0;
    if (!both) return end(beside_kernels_);
    if (!beside_kernels_.empty()) return;
    for (const Worker& worker : workers) {
      if (auto rival = start_rival(worker, now().together))
        beside_kernels_.push_back(std::move(rival));
    }
    // Starting one lets other actors go on: a kernel may have ended meanwhile.
    if (kernels_[0] == 0 || kernels_[1] == 0) end(beside_kernels_);
  }

  void update_link() {
    double slowdown = 1;
    for (const Worker& worker : workers) {
      if (kernels_.at(static_cast<std::size_t>(worker.device)) > 0)
        slowdown = std::max(slowdown, now().link_beside(worker.device));
    }
    if (slowdown == slowdown_) return;
    slowdown_ = slowdown;
    for (const auto& [link, bytes_per_s] : bandwidths_) link->set_bandwidth(bytes_per_s / slowdown);
  }

  std::array<Interference, 2> of_;  ///< by phase
  Phase phase_ = Phase::prefill;
  std::map<s4u::Link*, double> bandwidths_;  ///< with nothing beside
  std::array<int, 2> kernels_{};             ///< that run, by device
  int num_transfers_ = 0;                    ///< that are on their way, and not too small
  double slowdown_ = 1;                      ///< of the link, now
  Rivals beside_transfers_;
  Rivals beside_kernels_;  ///< while both devices compute
  int num_sent_ = 0;       ///< pieces that a sender has on their way
  s4u::MutexPtr sending_ = s4u::Mutex::create();
  s4u::ConditionVariablePtr nothing_is_sent_ = s4u::ConditionVariable::create();
};

std::unique_ptr<Rivalry> in_use;

}  // namespace

bool SimulatedContention::is_needed(const CostModel& costs) {
  for (const Phase phase : {Phase::prefill, Phase::decode}) {
    const Interference of = costs.interference(phase);
    if (of.together > 1) return true;
    for (const Worker& worker : workers) {
      if (of.kernels_on(worker.device) > 1 || of.link_beside(worker.device) > 1) return true;
    }
  }
  return false;
}

SimulatedContention::SimulatedContention(const CostModel& costs) {
  in_use = std::make_unique<Rivalry>(costs);
}

SimulatedContention::~SimulatedContention() { in_use.reset(); }

void SimulatedContention::enter(Phase phase) { in_use->enter(phase); }

}  // namespace sluice

// StarPU, a shared library, calls these two instead of SimGrid's, from an actor a worker and an
// actor a direction of a link: no signal of SimGrid's says when a transfer starts.
// NOLINTBEGIN(readability-inconsistent-declaration-parameter-name): ours say what they are

extern "C" void sg_actor_execute(double flops) {
  if (sluice::in_use) {
    sluice::in_use->wait_for_sending();
    sluice::in_use->count_kernel(1);
  }
  simgrid::s4u::this_actor::execute(flops);
  if (sluice::in_use) sluice::in_use->count_kernel(-1);
}

extern "C" void sg_host_sendto(sg_host_t from, sg_host_t to, double bytes) {
  const bool counts = sluice::in_use && bytes >= sluice::least_bytes;
  const bool is_sent = sluice::in_use && sluice::in_use->is_sender(from);
  if (counts) sluice::in_use->transfer_starts();
  if (is_sent) sluice::in_use->sending_starts();
  simgrid::s4u::Comm::sendto(from, to, static_cast<std::uint64_t>(bytes));
  if (is_sent && sluice::in_use) sluice::in_use->sending_ends();
  if (counts && sluice::in_use) sluice::in_use->transfer_ends();
}

// NOLINTEND(readability-inconsistent-declaration-parameter-name)
