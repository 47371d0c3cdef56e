#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "schedulers/policy.h"

namespace sluice::test {

/// A request's part in a plan of NEO's oracle.
struct NeoPart {
  enum class Kind : std::uint8_t {
    prompt,
    gpu,  ///< decodes, KV in HBM
    cpu,  ///< decodes, KV in DDR
  };
  Kind kind = Kind::gpu;
  std::int64_t id = 0;
  std::int64_t rows = 1;
  std::int64_t context = 0;         ///< tokens in its KV cache before it
  std::int64_t skips = 0;           ///< as RequestView has it
  bool is_admitted_to_ddr = false;  ///< a waiting prompt whose KV goes there
};

/// The two sub-batches of section 3.2.
using NeoBatches = std::array<std::vector<NeoPart>, 2>;

/// The symbols of docs/reference/policies.md, section neo, straight from the cost model.
class NeoTimes {
 public:
  /// `costs` outlives it.
  explicit NeoTimes(const CostModel& costs, double launch_us = 0);

  /// L(S).
  double linear_s(std::int64_t rows) const;
  /// G(n, N) or C(n, N): `tokens` that `requests` see together.
  double gpu_attention_s(std::int64_t requests, std::int64_t tokens) const;
  double cpu_attention_s(std::int64_t requests, std::int64_t tokens) const;

  /// r1, and r0.
  double remains_1_s(const NeoBatches& batches) const;
  double remains_0_s(const NeoBatches& batches) const;
  /// T.
  double layer_s(const NeoBatches& batches) const;
  /// x / T; 0 without requests.
  double requests_per_s(const NeoBatches& batches) const;
  /// Section 3.2's inequalities.
  bool hides_cpu(const NeoBatches& batches) const {
    return remains_1_s(batches) >= 0 && remains_0_s(batches) >= 0;
  }
  /// The largest S with L(S) at most 1.1 L(1).
  std::int64_t idle_rows() const { return idle_rows_; }

 private:
  double attention_s(Device device, const BatchShape& shape) const;
  double decode_attention_s(Device device, std::int64_t requests, std::int64_t tokens) const;
  double prompts_s(const std::vector<NeoPart>& parts) const;
  /// Of one sub-batch.
  double linear_s(const std::vector<NeoPart>& parts) const;
  double gpu_attention_s(const std::vector<NeoPart>& parts) const;
  double cpu_attention_s(const std::vector<NeoPart>& parts) const;

  const CostModel& costs_;
  double launch_s_;
  std::int64_t idle_rows_ = 1;
};

/// Requests in both sub-batches.
std::int64_t num_requests(const NeoBatches& batches);
/// Rows of a sub-batch.
std::int64_t num_rows(const std::vector<NeoPart>& parts);

/// How the oracle differs between policies.
enum class NeoKind : std::uint8_t {
  neo,
  fastdecode,  ///< whoever can run does, hidden or not
};

/// What `neo` answers for requests that come, written once more from the documentation, section
/// "Requests that come", and from section 3.2 of the paper: plain and slow. Where both are silent,
/// a line "Reading:" says how the oracle takes it.
Schedule neo_oracle(const NeoTimes& times, const Situation& situation, NeoKind kind = NeoKind::neo);

}  // namespace sluice::test
