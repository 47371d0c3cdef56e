#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "engine/batching/executor.h"
#include "perfmodels/task.h"

namespace sluice::test {

/// The token that an output with this seed draws as its nth, of so many.
std::int32_t scripted_token(std::uint64_t seed, std::int64_t step, std::int64_t vocab_size);

/// Computes nothing, on a clock of its own, and checks what it is asked to compute. It knows each
/// sequence by its seed, and the tokens that it will have. In place of KV it keeps for each token
/// of each page which tokens it stands for, from the first one on; so it sees when a sequence finds
/// other KV than its own, wherever that was written, moved or shared.
class ScriptedExecutor : public Executor {
 public:
  ScriptedExecutor(std::vector<std::int64_t> pool_pages, std::int64_t vocab_size);

  /// `seed`: the request's and its output's number.
  void expect_sequence(std::uint64_t seed, std::vector<std::int32_t> prompt);

  double now_s() const override { return now_s_; }
  void sleep_until(double time_s) override { now_s_ = std::max(now_s_, time_s); }
  void submit(const std::vector<SubBatch>& sub_batches, const std::vector<KvMove>& moves) override;
  std::vector<SubBatchResults> wait() override;

  /// The first thing that was wrong, in words; empty: nothing.
  const std::string& problem() const { return problem_; }
  std::int64_t num_iterations() const { return num_iterations_; }
  bool is_under_way() const { return !under_way_.empty(); }
  std::int64_t num_moved_pages() const { return num_moved_pages_; }

  /// Which sequences take part in an iteration, and with how many rows, by seed.
  using Rows = std::map<std::uint64_t, std::int64_t>;
  std::function<void(const Rows&)> on_submit = {};

 private:
  struct Script {
    std::vector<std::int32_t> prompt;
    std::vector<std::uint64_t> kv;  ///< what stands for each token's, as far as was asked for
  };
  using Page = std::array<std::uint64_t, page_tokens>;
  struct Slot {
    std::uint64_t seed = 0;
    std::int64_t next_step = 0;  ///< of the token drawn last, one more
  };
  /// Who has a page in an iteration.
  struct Holder {
    std::uint64_t seed = 0;
    bool only_reads = false;
  };

  template <typename... Arguments>
  void complain(const char* text, const Arguments&... arguments);
  std::int32_t token_at(std::uint64_t seed, const Script& script, std::int64_t position) const;
  std::uint64_t kv_at(std::uint64_t seed, std::int64_t position);
  void move(const KvMove& move);
  std::int32_t compute(std::size_t cohort, const BatchView& view, const BatchSequence& sequence);
  void check_piece(std::uint64_t seed, const BatchSequence& sequence, std::int64_t prompt);
  void check_rows(std::uint64_t seed, const BatchView& view, const BatchSequence& sequence);
  void check_pages(std::uint64_t seed, std::size_t cohort, const BatchView& view,
                   const BatchSequence& sequence, std::int64_t prompt);

  std::int64_t vocab_size_;
  std::vector<std::vector<Page>> pools_;
  std::map<std::uint64_t, Script> scripts_;
  std::map<std::int32_t, Slot> slots_;
  std::vector<std::map<std::int32_t, Holder>> holders_;  ///< by pool, of this iteration
  std::map<std::int32_t, std::uint64_t> seen_slots_;     ///< of this iteration
  std::deque<std::vector<SubBatchResults>> under_way_;
  double now_s_ = 0;
  std::int64_t num_iterations_ = 0;
  std::int64_t num_moved_pages_ = 0;
  std::string problem_;
};

}  // namespace sluice::test
