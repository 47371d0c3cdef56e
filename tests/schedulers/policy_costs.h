#pragma once

#include <map>

#include "perfmodels/cost_model.h"

namespace sluice::test {

/// A machine of a test: two layers of hidden size 64, a millisecond a sublayer, a second a GiB.
class PolicyCosts : public CostModel {
 public:
  PolicyCosts() {
    model_.num_layers = 2;
    model_.hidden_size = model_.embed_size = 64;
    model_.num_heads = model_.num_kv_heads = 4;
    model_.head_dim = 16;
    model_.ffn_size = 256;
    model_.vocab_size = 1000;
  }
  using CostModel::compute_s;
  const ModelDimensions& model() const override { return model_; }
  bool has(Device device) const override { return device == Device::gpu ? has_gpu : has_cpu; }
  std::uint64_t capacity_bytes(Tier tier) const override {
    const auto found = capacities.find(tier);
    return found == capacities.end() ? 0 : found->second;
  }
  double compute_s(Device device, Sublayer /*sublayer*/, const BatchShape& /*shape*/,
                   Tier /*operand*/) const override {
    ++num_asked;
    return device == Device::gpu ? 1e-4 : 1e-3;
  }
  double lm_head_s(Device /*device*/, std::int64_t /*logit_rows*/) const override { return 1e-3; }
  double transfer_s(Tier from, Tier to, double bytes) const override {
    return from == to ? 0 : bytes / (1 << 30);
  }
  double task_overhead_s(Device /*device*/, int /*num_sublayers*/) const override { return 0; }

  /// Layers of so many experts, one a token.
  void cut_into_experts(std::int64_t count) {
    model_.num_experts = count;
    model_.experts_per_token = 1;
    model_.ffn_size /= count;
  }

  bool has_gpu = false;
  bool has_cpu = true;
  std::map<Tier, std::uint64_t> capacities = {{Tier::ddr, std::uint64_t{1} << 30}};
  mutable int num_asked = 0;

 private:
  ModelDimensions model_;
};

}  // namespace sluice::test
