// A policy that answers at random: what can be followed, what nearly can, and what cannot. Its
// option `seed` says which answers; `wrong` how many of a thousand are nonsense.
#include <algorithm>
#include <array>
#include <cstdint>
#include <exception>
#include <limits>
#include <new>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "schedulers/plugin.h"

namespace {

using namespace sluice;  // NOLINT(google-build-using-namespace): a fixture

class Speechless : public std::exception {
 public:
  const char* what() const noexcept override { return nullptr; }
};

struct Unrelated {
  int value = 3;
};

class AtRandom : public Policy {
 public:
  void configure(PolicyOptions& options) override {
    seed_ = static_cast<std::uint64_t>(options.take_number("seed", 0, 1e15).value_or(1));
    random_.seed(seed_);
    wrong_ = static_cast<std::int64_t>(options.take_number("wrong", 0, 1000).value_or(20));
    maybe_throw();
  }

  void start(const CostModel& costs, const Workload& workload) override {
    maybe_throw();
    if (!is_wrong()) Policy::start(costs, workload);
    if (!is_wrong()) memory_random_.seed(seed_);
  }

  MemoryPlan plan_memory() override {
    maybe_throw();
    // What is still to answer for this plan: pipeline() is asked again and again.
    answered_ = {};
    MemoryPlan plan;
    if (is_wrong()) return plan;
    plan.uses_gpu = !costs().has(Device::gpu) || !plans_one_of(8);
    uses_gpu_ = plan.uses_gpu;
    const LayerHomes alike = homes();
    const bool mixed = plans_one_of(2);
    for (std::int64_t layer = 0; layer < model().num_layers; ++layer)
      plan.layers.push_back(mixed ? homes() : alike);
    plan.embedding = table_tier();
    plan.lm_head = table_tier();
    if (plans_one_of(3)) plan.lm_head_device = device();
    if (costs().capacity_bytes(Tier::hbm) > 0 && plans_one_of(3))
      plan.hbm_requests =
          plans_one_of(2) ? workload().batch : up_to(workload().batch, memory_random_);
    spoil(plan);
    return plan;
  }

  Pipeline pipeline(Phase phase) override {
    maybe_throw();
    std::optional<Pipeline>& answer = answered_.at(static_cast<std::size_t>(phase));
    if (!answer || is_wrong()) {
      answer = Pipeline{.mini_batches = 1 + up_to(workload().batch - 1),
                        .prefetch = static_cast<Prefetch>(up_to(2)),
                        .requests_at_once = one_of(2) ? 0 : up_to(workload().batch + 1)};
    }
    Pipeline spoilt = *answer;
    if (is_wrong()) spoilt.mini_batches = odd_number();
    if (is_wrong()) spoilt.prefetch = static_cast<Prefetch>(up_to(255));
    if (is_wrong()) spoilt.requests_at_once = odd_number();
    return spoilt;
  }

  Placement place(std::int64_t layer, const BatchShape& shape, const LayerHomes& homes) override {
    maybe_throw();
    if (is_wrong()) return *Placement::parse(one_of(2) ? "0110" : "0110x0");
    if (uses_gpu_ && one_of(4)) return Policy::place(layer, shape, homes);
    Placement placement = Placement::from_bits(static_cast<unsigned>(up_to(63)));
    if (!uses_gpu_) placement = Placement(Device::cpu);
    if (is_wrong()) {
      const auto sublayer = static_cast<std::size_t>(up_to(5));
      placement[layer_sublayers.at(sublayer)] = static_cast<Device>(up_to(255));
    }
    return placement;
  }

  /// Some of the requests, in sub-batches at random.
  IterationPlan plan_iteration(const std::vector<RequestView>& requests) override {
    maybe_throw();
    std::vector<RequestView> shuffled = requests;
    std::shuffle(shuffled.begin(), shuffled.end(), random_);
    std::array<std::int64_t, 2> taken{};
    std::vector<SubBatchPlan> lanes(static_cast<std::size_t>(1 + up_to(2)));
    bool any = false;
    for (const RequestView& request : shuffled) {
      const std::size_t phase = request.prompt_tokens_left > 0 ? 0 : 1;
      const std::int64_t most = answered_.at(phase) ? answered_.at(phase)->requests_at_once : 0;
      if (most > 0 && taken.at(phase) == most) continue;
      if (any && one_of(5)) continue;
      any = true;
      ++taken.at(phase);
      lanes[static_cast<std::size_t>(up_to(static_cast<std::int64_t>(lanes.size()) - 1))]
          .requests.push_back(request.id);
    }
    IterationPlan plan;
    for (SubBatchPlan& lane : lanes) {
      if (!lane.requests.empty()) plan.sub_batches.push_back(std::move(lane));
    }
    spoil(plan);
    return plan;
  }

 private:
  /// 0 to `most`.
  static std::int64_t up_to(std::int64_t most, std::mt19937_64& random) {
    return std::uniform_int_distribution<std::int64_t>(0, std::max<std::int64_t>(0, most))(random);
  }
  std::int64_t up_to(std::int64_t most) { return up_to(most, random_); }
  bool one_of(std::int64_t count) { return up_to(count - 1) == 0; }
  bool plans_one_of(std::int64_t count) { return up_to(count - 1, memory_random_) == 0; }
  bool is_wrong() { return up_to(999) < wrong_; }
  std::int64_t odd_number() {
    using Limits = std::numeric_limits<std::int64_t>;
    const std::array<std::int64_t, 8> numbers = {
        Limits::min(),    Limits::min() + 1,    -1,        0,
        workload().batch, workload().batch + 1, 1LL << 33, Limits::max()};
    return numbers.at(static_cast<std::size_t>(up_to(7)));
  }
  Device device() {
    if (is_wrong()) return static_cast<Device>(up_to(255));
    return uses_gpu_ && plans_one_of(2) ? Device::gpu : Device::cpu;
  }

  Tier tier() {
    if (is_wrong()) return static_cast<Tier>(up_to(255));
    while (true) {
      const Tier tier = all_tiers.at(static_cast<std::size_t>(up_to(3, memory_random_)));
      if (costs().capacity_bytes(tier) > 0) return tier;
    }
  }
  Tier table_tier() {
    const Tier any = tier();
    return any == Tier::hbm && !uses_gpu_ ? Tier::ddr : any;
  }
  LayerHomes homes() {
    LayerHomes homes = LayerHomes::all(tier(), tier());
    if (plans_one_of(2)) return homes;
    for (Tier& home : homes.weights) home = tier();
    return homes;
  }

  void spoil(MemoryPlan& plan) {
    if (is_wrong()) plan.layers.resize(static_cast<std::size_t>(up_to(12)));
    if (is_wrong()) plan.hbm_requests = odd_number();
    if (is_wrong()) plan.lm_head_device = static_cast<Device>(up_to(255));
    if (is_wrong()) plan.embedding = static_cast<Tier>(up_to(255));
    if (is_wrong()) plan.uses_gpu = !plan.uses_gpu;
  }

  void spoil(IterationPlan& plan) {
    if (is_wrong()) plan.sub_batches.clear();
    if (is_wrong()) plan.sub_batches.emplace_back();
    if (is_wrong()) plan.sub_batches.push_back({{odd_number()}});
    if (is_wrong() && !plan.sub_batches.empty()) plan.sub_batches.push_back(plan.sub_batches[0]);
    if (is_wrong() && !plan.sub_batches.empty()) {
      std::vector<std::int64_t>& ids = plan.sub_batches.front().requests;
      if (!ids.empty()) ids.insert(ids.end(), 3, ids.front());
    }
  }

  // NOLINTBEGIN(*-exception-baseclass): what a stranger may do
  void maybe_throw() {
    if (up_to(9) != 0 || !is_wrong()) return;
    switch (up_to(11)) {
      case 0:
        throw std::runtime_error("a reason");
      case 1:
        throw std::runtime_error("two\nlines, \r\t\x1b[31mred {} %s");
      case 2:
        throw std::runtime_error("");
      case 3:
        throw Speechless();
      case 4:
        throw std::runtime_error(std::string(200'000, 'x'));
      case 5:
        throw std::runtime_error("\xff\xfe no UTF-8");
      case 6:
        throw 42;
      case 7:
        throw "a text";
      case 8:
        throw std::string("a string");
      case 9:
        throw Unrelated();
      case 10:
        throw std::bad_alloc();
      default:
        throw std::nested_exception();
    }
  }
  // NOLINTEND(*-exception-baseclass)

  std::uint64_t seed_ = 1;
  std::mt19937_64 random_;
  /// For plan_memory(), whose answers to the same question are alike.
  std::mt19937_64 memory_random_;
  std::int64_t wrong_ = 0;
  bool uses_gpu_ = true;
  std::array<std::optional<Pipeline>, 2> answered_;
};

}  // namespace

SLUICE_POLICY(AtRandom, "at-random", "answers at random");
