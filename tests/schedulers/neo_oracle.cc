#include "tests/schedulers/neo_oracle.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <tuple>

namespace sluice::test {
namespace {

std::int64_t pages_for(std::int64_t tokens) { return (tokens + page_tokens - 1) / page_tokens; }

/// n and N of the decoding requests of one kind.
std::pair<std::int64_t, std::int64_t> seen_by(const std::vector<NeoPart>& parts,
                                              NeoPart::Kind kind) {
  std::pair<std::int64_t, std::int64_t> result;
  for (const NeoPart& part : parts) {
    if (part.kind != kind) continue;
    ++result.first;
    result.second += part.context + 1;
  }
  return result;
}

/// How the six steps go through one situation. Members are what is left of each resource.
class Iteration {
 public:
  Iteration(const NeoTimes& times, const Situation& situation, NeoKind kind)
      : times_(times), situation_(situation), kind_(kind) {
    for (const PoolView& pool : situation.pools) (pool.tier == Tier::hbm ? hbm_ : ddr_) = pool;
    free_sequences_ = situation.free_sequences;
    for (const RequestView& request : situation.running) {
      if (request.prompt_tokens_left > 0) {
        begun_.push_back(request);
      } else {
        (request.kv == Tier::hbm ? gpu_ : cpu_).push_back(request);
      }
    }
  }

  Schedule decide() {
    make_room_in_ddr();
    schedule_gpu_requests();
    schedule_prompts();
    const NeoBatches prompts_and_gpu = batches_;
    if (batches_[0].empty()) {
      schedule_cpu_requests_alone();
      return answer(batches_);
    }
    schedule_cpu_requests();
    if (kind_ == NeoKind::fastdecode) return answer(batches_);
    reduce_prompts();
    return answer(choose(prompts_and_gpu));
  }

 private:
  // Before step 2.

  void make_room_in_ddr() {
    while (next_pages(cpu_) > ddr_.free_pages) give_up(take_last(cpu_), ddr_);
  }

  // Step 2.

  void schedule_gpu_requests() {
    bool somebody_made_way = false;
    while (next_pages(gpu_) > hbm_.free_pages || std::ssize(gpu_) > situation_.max_batch_tokens) {
      make_way(take_last(gpu_));
      somebody_made_way = true;
    }
    // Reading: pages that next tokens take in this iteration are not free any more.
    hbm_.free_pages -= next_pages(gpu_);
    if (!somebody_made_way) come_back();
    for (const RequestView& request : gpu_) batches_[0].push_back(decoding(request));
  }

  void make_way(RequestView request) {
    if (ddr_.pages == 0 || ddr_.free_pages < request.pages) {
      give_up(request, hbm_);
      return;
    }
    hbm_.free_pages += request.pages - request.shared_pages;
    ddr_.free_pages -= request.pages;
    schedule_.swaps.push_back({request.id, ddr_.tier});
    request.kv = ddr_.tier;
    request.shared_pages = 0;  // there it has pages of its own
    cpu_.push_back(request);
  }

  void come_back() {
    const auto most_filled =
        static_cast<std::int64_t>(std::floor(0.95 * static_cast<double>(hbm_.pages)));
    sort_by_skips(cpu_);
    while (!cpu_.empty()) {
      RequestView request = cpu_.front();
      // Reading: with the page that its next token needs, since it is a GPU request from now on.
      const std::int64_t pages = std::max(request.pages, pages_for(request.context_tokens + 1));
      if (hbm_.pages - (hbm_.free_pages - pages) > most_filled) return;
      // Reading: nobody comes back whom the rows do not suffice for.
      if (std::ssize(gpu_) == situation_.max_batch_tokens) return;
      hbm_.free_pages -= pages;
      ddr_.free_pages += request.pages - request.shared_pages;
      schedule_.swaps.push_back({request.id, Tier::hbm});
      request.kv = Tier::hbm;
      gpu_.push_back(request);
      cpu_.erase(cpu_.begin());
    }
  }

  // Step 3.

  void schedule_prompts() {
    std::ranges::sort(begun_, {}, by_urgency);
    for (const RequestView& request : begun_) add_prompt(request, InTier::any);
    bool to_ddr = false;
    for (const RequestView& request : situation_.waiting) {
      // Reading: a sequence that was given up in this iteration is free.
      if (free_sequences_ == 0) return;
      if (!to_ddr && fits_hbm(request)) {
        if (!add_prompt(request, InTier::hbm)) {
          return;
        }
        hbm_.free_pages -= request.pages;
        admit(request, Tier::hbm);
        continue;
      }
      to_ddr = true;
      // Reading: all KV in HBM is what is not free there, next tokens and new prompts included.
      const std::int64_t in_hbm = hbm_.pages - hbm_.free_pages;
      if (ddr_.free_pages - request.pages < in_hbm) return;
      const bool has_to = request.pages > hbm_.pages || kind_ == NeoKind::fastdecode;
      if (!has_to && cpu_is_behind()) return;
      if (!add_prompt(request, has_to ? InTier::ddr : InTier::ddr_if_hidden)) return;
      ddr_.free_pages -= request.pages;
      admit(request, ddr_.tier);
    }
  }

  bool fits_hbm(const RequestView& request) const {
    if (hbm_.free_pages < request.pages) return false;
    const auto most_filled =
        static_cast<std::int64_t>(std::floor(0.95 * static_cast<double>(hbm_.pages)));
    return cpu_.empty() || hbm_.pages - hbm_.free_pages + request.pages <= most_filled;
  }
  bool cpu_is_behind() const {
    return std::ranges::any_of(cpu_, [&](const RequestView& request) {
      return request.skips >= situation_.max_skips / 2;
    });
  }

  void admit(const RequestView& request, Tier tier) {
    --free_sequences_;
    schedule_.admissions.push_back({request.id, tier});
  }

  enum class InTier : std::uint8_t { any, hbm, ddr, ddr_if_hidden };

  /// False: this one is not in, and none comes behind it.
  bool add_prompt(const RequestView& request, InTier tier) {
    if (prompts_end_) return false;
    const std::int64_t rows_left = situation_.max_batch_tokens - num_rows(batches_[0]);
    // What it would bring if it were alone.
    const std::int64_t most = request.rows_within(situation_.prefill_chunk_tokens);
    const std::int64_t rows =
        request.rows_within(std::min(rows_left, situation_.prefill_chunk_tokens));
    if (rows == 0) return false;
    if (tier == InTier::any) {
      // It takes what is left.
    } else if (tier == InTier::hbm) {
      // Reading: it is the last one where the rows that are left cut it, not where its own limits
      // do: the longest piece, and that of drawn tokens.
      prompts_end_ = rows < most;
    } else if (rows < request.rows_within(request.prompt_tokens_left)) {
      if (num_prompts() > 0) return false;
      prompts_end_ = true;  // no other prompt is in the iteration
    }
    NeoPart part = {.kind = NeoPart::Kind::prompt,
                    .id = request.id,
                    .rows = rows,
                    .context = request.context_tokens,
                    .skips = request.skips,
                    .is_admitted_to_ddr = tier == InTier::ddr || tier == InTier::ddr_if_hidden};
    if (tier == InTier::ddr_if_hidden && times_.cpu_attention_s(1, request.prompt_tokens_left + 1) >
                                             times_.linear_s(num_rows(batches_[0]) + rows)) {
      return false;
    }
    batches_[0].push_back(part);
    return true;
  }

  std::int64_t num_prompts() const {
    return std::ranges::count(batches_[0], NeoPart::Kind::prompt, &NeoPart::kind);
  }

  // Step 4.

  void schedule_cpu_requests() {
    sort_by_skips(cpu_);
    std::int64_t too_many_tokens = std::numeric_limits<std::int64_t>::max();
    for (const RequestView& request : cpu_) {
      if (!has_page_and_row(request)) continue;
      const bool is_asked = kind_ == NeoKind::neo && request.skips < situation_.max_skips;
      const std::int64_t tokens = request.context_tokens + 1;
      if (is_asked && tokens >= too_many_tokens) continue;
      const std::size_t favourite = with_more_remaining();
      std::optional<std::size_t> chosen;
      for (const std::size_t place : {favourite, 1 - favourite}) {
        NeoBatches with = batches_;
        with.at(place).push_back(decoding(request));
        if (!chosen && (!is_asked || times_.hides_cpu(with))) chosen = place;
      }
      if (chosen) {
        put(request, *chosen);
      } else {
        too_many_tokens = tokens;
      }
    }
  }

  /// Where the GPU has nothing of its own.
  void schedule_cpu_requests_alone() {
    sort_by_skips(cpu_);
    NeoBatches together;
    for (const RequestView& request : cpu_) {
      if (!has_page_and_row(request)) continue;
      put(request, with_more_remaining());
      together[0].push_back(decoding(request));
    }
    if (times_.layer_s(together) <= times_.layer_s(batches_)) batches_ = together;
  }

  std::size_t with_more_remaining() const {
    // Reading: the very first one is the first that is put anywhere.
    if (!has_cpu_request(batches_)) return 1;
    return times_.remains_1_s(batches_) > times_.remains_0_s(batches_) ? 1 : 0;
  }

  bool has_page_and_row(const RequestView& request) const {
    return missing_pages(request) <= ddr_.free_pages &&
           num_rows(batches_[0]) + num_rows(batches_[1]) < situation_.max_batch_tokens;
  }

  void put(const RequestView& request, std::size_t place) {
    ddr_.free_pages -= missing_pages(request);
    batches_.at(place).push_back(decoding(request));
  }

  // Step 5.

  void reduce_prompts() {
    while (const std::optional<NeoBatches> fewer = without_last_prompt(batches_)) {
      if (!times_.hides_cpu(*fewer)) return;
      batches_ = *fewer;
    }
  }

  /// Without the last waiting prompt for DDR, where more than the idle rows remain in the first.
  std::optional<NeoBatches> without_last_prompt(const NeoBatches& batches) const {
    NeoBatches fewer = batches;
    std::vector<NeoPart>& parts = fewer[0];
    for (std::size_t i = parts.size(); i-- > 0;) {
      if (!parts[i].is_admitted_to_ddr) continue;
      parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(i));
      if (num_rows(parts) <= times_.idle_rows()) return std::nullopt;
      return fewer;
    }
    return std::nullopt;
  }

  // Step 6.

  /// `prompts_and_gpu`: the first sub-batch as step 3 left it.
  NeoBatches choose(const NeoBatches& prompts_and_gpu) const {
    if (!has_cpu_request(batches_)) return batches_;
    if (has_waited_too_long(batches_)) return batches_;
    // Reading: of all prompts of step 3, as if step 5 had not been there.
    NeoBatches gpu_only = prompts_and_gpu;
    while (const std::optional<NeoBatches> fewer = without_last_prompt(gpu_only)) gpu_only = *fewer;
    return times_.requests_per_s(batches_) > times_.requests_per_s(gpu_only) ? batches_ : gpu_only;
  }

  bool has_waited_too_long(const NeoBatches& batches) const {
    const auto waited = [&](const NeoPart& part) {
      return part.kind == NeoPart::Kind::cpu && part.skips >= situation_.max_skips;
    };
    return std::ranges::any_of(batches[0], waited) || std::ranges::any_of(batches[1], waited);
  }

  // The answer.

  Schedule answer(const NeoBatches& batches) {
    std::erase_if(schedule_.admissions, [&](const Admission& admission) {
      return std::ranges::find(batches[0], admission.request, &NeoPart::id) == batches[0].end();
    });
    for (const std::vector<NeoPart>& parts : batches) {
      if (parts.empty()) continue;
      std::vector<Share>& shares = schedule_.sub_batches.emplace_back();
      for (const NeoPart& part : parts) shares.push_back({part.id, part.rows});
    }
    return schedule_;
  }

  // Requests and pages.

  static NeoPart decoding(const RequestView& request) {
    return {.kind = request.kv == Tier::hbm ? NeoPart::Kind::gpu : NeoPart::Kind::cpu,
            .id = request.id,
            .rows = 1,
            .context = request.context_tokens,
            .skips = request.skips};
  }
  static bool has_cpu_request(const NeoBatches& batches) {
    return seen_by(batches[0], NeoPart::Kind::cpu).first +
               seen_by(batches[1], NeoPart::Kind::cpu).first >
           0;
  }
  static std::int64_t missing_pages(const RequestView& request) {
    return std::max<std::int64_t>(0, pages_for(request.context_tokens + 1) - request.pages);
  }
  static std::int64_t next_pages(const std::vector<RequestView>& requests) {
    std::int64_t pages = 0;
    for (const RequestView& request : requests) pages += missing_pages(request);
    return pages;
  }
  static RequestView take_last(std::vector<RequestView>& requests) {
    const auto last = std::ranges::max_element(requests, {}, by_urgency);
    const RequestView request = *last;
    requests.erase(last);
    return request;
  }
  void give_up(const RequestView& request, PoolView& pool) {
    pool.free_pages += request.pages - request.shared_pages;
    ++free_sequences_;
    schedule_.preemptions.push_back(request.id);
  }
  static std::tuple<int, std::int64_t> by_urgency(const RequestView& one) {
    return {one.priority, one.id};
  }
  static void sort_by_skips(std::vector<RequestView>& requests) {
    std::ranges::sort(requests, {}, [](const RequestView& one) {
      return std::tuple(-one.skips, one.priority, one.id);
    });
  }

  const NeoTimes& times_;
  const Situation& situation_;
  NeoKind kind_;
  PoolView hbm_{.tier = Tier::hbm};
  PoolView ddr_{.tier = Tier::ddr};
  std::int64_t free_sequences_ = 0;
  std::vector<RequestView> begun_;  ///< prompts
  std::vector<RequestView> gpu_;
  std::vector<RequestView> cpu_;
  bool prompts_end_ = false;
  NeoBatches batches_;
  Schedule schedule_;
};

}  // namespace

std::int64_t num_rows(const std::vector<NeoPart>& parts) {
  std::int64_t rows = 0;
  for (const NeoPart& part : parts) rows += part.rows;
  return rows;
}

std::int64_t num_requests(const NeoBatches& batches) {
  return std::ssize(batches[0]) + std::ssize(batches[1]);
}

NeoTimes::NeoTimes(const CostModel& costs, double launch_us)
    : costs_(costs), launch_s_(launch_us * 1e-6) {
  constexpr std::int64_t enough = 1 << 16;
  while (idle_rows_ < enough && linear_s(idle_rows_ + 1) <= 1.1 * linear_s(1)) ++idle_rows_;
}

double NeoTimes::linear_s(std::int64_t rows) const {
  if (rows == 0) return 0;
  double sum = 0;
  for (const Sublayer sublayer : {Sublayer::qkv, Sublayer::out_proj, Sublayer::fc1, Sublayer::fc2})
    sum += costs_.compute_s(Device::gpu, sublayer, BatchShape::decode(rows, 1));
  return sum + costs_.task_overhead_s(Device::gpu, 1) + costs_.task_overhead_s(Device::gpu, 3);
}

double NeoTimes::attention_s(Device device, const BatchShape& shape) const {
  return costs_.compute_s(device, Sublayer::qk, shape) +
         costs_.compute_s(device, Sublayer::sv, shape);
}

double NeoTimes::decode_attention_s(Device device, std::int64_t requests,
                                    std::int64_t tokens) const {
  const std::int64_t each = (tokens + requests - 1) / requests;
  return attention_s(device, BatchShape::decode(requests, each)) +
         costs_.task_overhead_s(device, 2);
}

double NeoTimes::gpu_attention_s(std::int64_t requests, std::int64_t tokens) const {
  return requests == 0 ? 0 : decode_attention_s(Device::gpu, requests, tokens);
}

double NeoTimes::cpu_attention_s(std::int64_t requests, std::int64_t tokens) const {
  if (requests == 0) return 0;
  const ModelDimensions& model = costs_.model();
  const double queries = activation_element_bytes * model.q_size();  // results are as large
  const auto rows = static_cast<double>(requests);
  return decode_attention_s(Device::cpu, requests, tokens) +
         costs_.transfer_s(Tier::hbm, Tier::ddr, rows * (queries + kv_bytes_per_token(model))) +
         costs_.transfer_s(Tier::ddr, Tier::hbm, rows * queries) + launch_s_;
}

double NeoTimes::prompts_s(const std::vector<NeoPart>& parts) const {
  double sum = 0;
  for (const NeoPart& part : parts) {
    if (part.kind != NeoPart::Kind::prompt) continue;
    sum += attention_s(Device::gpu, {.phase = Phase::prefill,
                                     .batch = 1,
                                     .rows = part.rows,
                                     .context = part.context + part.rows});
  }
  return sum;
}

double NeoTimes::linear_s(const std::vector<NeoPart>& parts) const {
  return linear_s(num_rows(parts));
}
double NeoTimes::gpu_attention_s(const std::vector<NeoPart>& parts) const {
  const auto [requests, tokens] = seen_by(parts, NeoPart::Kind::gpu);
  return gpu_attention_s(requests, tokens);
}
double NeoTimes::cpu_attention_s(const std::vector<NeoPart>& parts) const {
  const auto [requests, tokens] = seen_by(parts, NeoPart::Kind::cpu);
  return cpu_attention_s(requests, tokens);
}

double NeoTimes::remains_1_s(const NeoBatches& batches) const {
  return linear_s(batches[0]) - cpu_attention_s(batches[1]);
}

double NeoTimes::remains_0_s(const NeoBatches& batches) const {
  return linear_s(batches[1]) + gpu_attention_s(batches[0]) + prompts_s(batches[0]) -
         cpu_attention_s(batches[0]);
}

double NeoTimes::layer_s(const NeoBatches& batches) const {
  return std::max(linear_s(batches[0]), cpu_attention_s(batches[1])) +
         std::max(linear_s(batches[1]) + gpu_attention_s(batches[0]) + prompts_s(batches[0]),
                  cpu_attention_s(batches[0]));
}

double NeoTimes::requests_per_s(const NeoBatches& batches) const {
  const std::int64_t requests = num_requests(batches);
  return requests == 0 ? 0 : static_cast<double>(requests) / layer_s(batches);
}

Schedule neo_oracle(const NeoTimes& times, const Situation& situation, NeoKind kind) {
  return Iteration(times, situation, kind).decide();
}

}  // namespace sluice::test
