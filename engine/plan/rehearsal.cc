#include "engine/plan/rehearsal.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace sluice {
namespace {

/// So often a policy is asked while all requests decode.
constexpr std::int64_t most_asked_in_decode = 8;

/// Requests of one kind, of several iterations.
struct Tally {
  Phase phase = Phase::decode;
  std::optional<Tier> kv;
  std::int64_t rows = 1;
  std::int64_t first_requests = 0;  ///< of the first of the iterations
  double requests = 0;
  double contexts = 0;  ///< tokens that they see, the new ones included, all together

  bool takes(const Tally& other) const {
    return phase == other.phase && kv == other.kv && rows == other.rows &&
           8 * std::abs(first_requests - other.first_requests) <= first_requests;
  }
  RequestKind mean(std::int64_t iterations) const {
    const std::int64_t batch = std::llround(requests / static_cast<double>(iterations));
    return {{phase, batch, rows, std::llround(contexts / requests)}, kv};
  }
};

/// Of each sub-batch.
using Tallies = std::vector<std::vector<Tally>>;

bool takes(const Tallies& tallies, const Tallies& others) {
  return std::equal(tallies.begin(), tallies.end(), others.begin(), others.end(),
                    [](const auto& kinds, const auto& other_kinds) {
                      return std::equal(kinds.begin(), kinds.end(), other_kinds.begin(),
                                        other_kinds.end(),
                                        [](const Tally& a, const Tally& b) { return a.takes(b); });
                    });
}

}  // namespace

/// The run, as far as it has come.
class Rehearsal::Run {
 public:
  Run(Rehearsal& rehearsal, CheckedPolicy& policy, const Workload& workload,
      const MemoryPlan& memory)
      : rehearsal_(rehearsal), policy_(policy), workload_(workload), memory_(memory) {
    for (std::int64_t id = 0; id < workload.batch; ++id) {
      requests_.push_back(
          {{.id = id,
            .prompt_tokens_left = workload.input_tokens,
            .context_tokens = 0,
            .kv = id < memory.hbm_requests ? Tier::hbm : memory.layers.front().kv}});
    }
    rehearsal_.first_steps_.resize(requests_.size());
    rehearsal_.last_steps_.resize(requests_.size());
  }

  void to_its_end() {
    while (iterate()) {
    }
    if (groups_.empty() || groups_.back().phase == Phase::prefill) imagine_decode();
    for (const Group& group : groups_) {
      AlikeIterations& alike =
          rehearsal_.groups_.emplace_back(AlikeIterations{group.phase, group.count, {}});
      for (const std::vector<Tally>& kinds : group.tallies) {
        std::vector<RequestKind>& means = alike.sub_batches.emplace_back();
        for (const Tally& kind : kinds)
          means.push_back(kind.mean(std::max<std::int64_t>(1, group.count)));
      }
    }
  }

 private:
  struct Request {
    RequestView view;
    std::int64_t drawn = 0;
  };
  struct Group {
    Phase phase;
    std::int64_t count;
    Tallies tallies;
  };

  /// False: all requests have all their tokens.
  bool iterate() {
    std::vector<RequestView> views;
    bool any_prompts = false;
    for (const Request& request : requests_) {
      if (request.drawn == workload_.output_tokens) continue;
      views.push_back(request.view);
      any_prompts = any_prompts || request.view.prompt_tokens_left > 0;
    }
    if (views.empty()) return false;
    const IterationPlan plan = ask(views);
    if (plan.sub_batches.empty()) return true;
    const std::int64_t count = any_prompts ? 1 : iterations_alike(plan);
    const std::size_t group =
        add(any_prompts ? Phase::prefill : Phase::decode, tallies_of(plan, count), count);
    rehearsal_.steps_.push_back({group, count});
    for (const SubBatchPlan& sub_batch : plan.sub_batches) {
      for (const std::int64_t id : sub_batch.requests) advance(id, count);
    }
    return true;
  }

  /// A policy may wait for the iteration before, once.
  IterationPlan ask(const std::vector<RequestView>& views) {
    IterationPlan plan = policy_.plan_iteration(views, awaited_);
    awaited_ = plan.sub_batches.empty() ? Awaited::nothing : Awaited::an_iteration;
    return plan;
  }

  Request& request(std::int64_t id) { return requests_.at(static_cast<std::size_t>(id)); }

  /// Until it is asked again, or one of these requests is done.
  std::int64_t iterations_alike(const IterationPlan& plan) {
    std::int64_t count =
        (workload_.output_tokens - 1 + most_asked_in_decode - 1) / most_asked_in_decode;
    for (const SubBatchPlan& sub_batch : plan.sub_batches) {
      for (const std::int64_t id : sub_batch.requests)
        count = std::min(count, workload_.output_tokens - request(id).drawn);
    }
    return count;
  }

  /// Of `count` iterations, in which contexts grow.
  Tallies tallies_of(const IterationPlan& plan, std::int64_t count) {
    Tallies tallies;
    for (const SubBatchPlan& sub_batch : plan.sub_batches) {
      std::vector<Tally>& kinds = tallies.emplace_back();
      for (const std::int64_t id : sub_batch.requests) {
        const RequestView& view = request(id).view;
        const bool prompt = view.prompt_tokens_left > 0;
        const Phase phase = prompt ? Phase::prefill : Phase::decode;
        std::optional<Tier> kv;
        if (id < memory_.hbm_requests) kv = Tier::hbm;
        auto kind = std::find_if(kinds.begin(), kinds.end(), [&](const Tally& tally) {
          return tally.phase == phase && tally.kv == kv;
        });
        if (kind == kinds.end())
          kind = kinds.insert(kind, {phase, kv, prompt ? view.prompt_tokens_left : 1, 0, 0, 0});
        ++kind->first_requests;
        const auto iterations = static_cast<double>(count);
        const double first = static_cast<double>(view.context_tokens + kind->rows);
        kind->requests += iterations;
        kind->contexts += iterations * (first + (iterations - 1) / 2);
      }
    }
    return tallies;
  }

  std::size_t add(Phase phase, Tallies tallies, std::int64_t count) {
    // The very first one finds nothing loaded, and is estimated so.
    const auto first = groups_.empty() ? groups_.begin() : groups_.begin() + 1;
    const auto group = std::find_if(first, groups_.end(), [&](const Group& its) {
      return its.phase == phase && takes(its.tallies, tallies);
    });
    if (group == groups_.end()) {
      groups_.push_back({phase, count, std::move(tallies)});
      return groups_.size() - 1;
    }
    group->count += count;
    for (std::size_t i = 0; i < tallies.size(); ++i) {
      for (std::size_t k = 0; k < tallies[i].size(); ++k) {
        group->tallies[i][k].requests += tallies[i][k].requests;
        group->tallies[i][k].contexts += tallies[i][k].contexts;
      }
    }
    return static_cast<std::size_t>(group - groups_.begin());
  }

  void advance(std::int64_t id, std::int64_t tokens) {
    Request& its = request(id);
    const std::size_t step = rehearsal_.steps_.size() - 1;
    if (its.drawn == 0) rehearsal_.first_steps_[static_cast<std::size_t>(id)] = step;
    rehearsal_.last_steps_[static_cast<std::size_t>(id)] = step;
    its.drawn += tokens;
    if (its.view.prompt_tokens_left > 0) {
      its.view.context_tokens += std::exchange(its.view.prompt_tokens_left, 0);
    } else {
      its.view.context_tokens += tokens;
    }
  }

  /// What the policy would do if one token more were asked for.
  void imagine_decode() {
    std::vector<RequestView> views;
    for (const Request& request : requests_) views.push_back(request.view);
    IterationPlan plan = ask(views);
    if (plan.sub_batches.empty()) plan = ask(views);
    groups_.push_back({Phase::decode, 0, tallies_of(plan, 1)});
  }

  Rehearsal& rehearsal_;
  CheckedPolicy& policy_;
  const Workload& workload_;
  const MemoryPlan& memory_;
  std::vector<Request> requests_;
  std::vector<Group> groups_;
  Awaited awaited_ = Awaited::nothing;  ///< by the engine, if this ran
};

Rehearsal::Rehearsal(CheckedPolicy& policy, const Workload& workload, const MemoryPlan& memory)
    : output_tokens_(workload.output_tokens) {
  Run(*this, policy, workload, memory).to_its_end();
}

double Rehearsal::time_per_output_token_s(std::span<const IterationEstimate> iterations) const {
  std::vector<double> tokens_s;  // by step, when the last of its iterations has its tokens
  double now_s = 0;
  for (const Step& step : steps_) {
    const IterationEstimate& iteration = iterations[step.group];
    now_s += static_cast<double>(step.count) * iteration.seconds;
    tokens_s.push_back(now_s - iteration.rest_s);
  }
  double sum_s = 0;
  for (std::size_t request = 0; request < first_steps_.size(); ++request)
    sum_s += tokens_s[last_steps_[request]] - tokens_s[first_steps_[request]];
  return sum_s / static_cast<double>(first_steps_.size()) / static_cast<double>(output_tokens_ - 1);
}

}  // namespace sluice
