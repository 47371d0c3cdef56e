#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <random>
#include <utility>

#include "perfmodels/cost_model.h"

namespace sluice::test {

/// A machine of a test, in numbers to work with by hand: a sublayer takes what a table says,
/// whatever the batch, and a byte takes the same time alone as among others.
///
/// Its model has hidden size 10, 2 heads of 5, an FFN of 40, no gate. At 16 bits a layer's weights
/// are 600 bytes of QKV (200 each), 200 of the output projection, 800 of FC1 and 800 of FC2.
class ToyCosts : public CostModel {
 public:
  explicit ToyCosts(std::int64_t num_layers = 1) {
    model_.num_layers = num_layers;
    model_.hidden_size = model_.embed_size = 10;
    model_.num_heads = model_.num_kv_heads = 2;
    model_.head_dim = 5;
    model_.ffn_size = 40;
    model_.vocab_size = 50;
    model_.gated_ffn = false;
  }
  using CostModel::compute_s;
  const ModelDimensions& model() const override { return model_; }
  bool has(Device device) const override { return device == Device::gpu ? has_gpu : has_cpu; }
  std::uint64_t capacity_bytes(Tier /*tier*/) const override { return 1ULL << 40; }
  double compute_s(Device device, Sublayer sublayer, const BatchShape& /*shape*/,
                   Tier operand) const override {
    const bool of_gpu = device == Device::gpu;
    const double seconds = sublayer == Sublayer::kv_store
                               ? (of_gpu ? kv_store_s.first : kv_store_s.second)
                               : (of_gpu ? gpu_s : cpu_s)[index(sublayer)];
    return operand == Tier::cxl ? cxl_factor * seconds : seconds;
  }
  double lm_head_s(Device device, std::int64_t /*logit_rows*/) const override {
    return device == Device::gpu ? head_s.first : head_s.second;
  }
  double transfer_s(Tier from, Tier to, double bytes) const override {
    if (from == to) return 0;
    return bytes / bytes_per_s.at({from, to});
  }
  double task_overhead_s(Device device, int num_sublayers) const override {
    return num_sublayers * (device == Device::gpu ? overhead_s.first : overhead_s.second);
  }

  ModelDimensions& model() { return model_; }

  bool has_gpu = true;
  bool has_cpu = true;
  std::array<double, 6> gpu_s = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6};  ///< by sublayer
  std::array<double, 6> cpu_s = {1, 2, 3, 4, 5, 6};
  std::pair<double, double> kv_store_s = {0, 0};  ///< GPU, CPU
  std::pair<double, double> head_s = {0, 0};      ///< GPU, CPU
  std::pair<double, double> overhead_s = {0, 0};  ///< GPU, CPU
  double cxl_factor = 3;
  std::map<std::pair<Tier, Tier>, double> bytes_per_s = {
      {{Tier::ddr, Tier::hbm}, 10}, {{Tier::hbm, Tier::ddr}, 5},  {{Tier::cxl, Tier::hbm}, 4},
      {{Tier::hbm, Tier::cxl}, 2},  {{Tier::cxl, Tier::ddr}, 8},  {{Tier::ddr, Tier::cxl}, 8},
      {{Tier::disk, Tier::ddr}, 1}, {{Tier::disk, Tier::hbm}, 1}, {{Tier::ddr, Tier::disk}, 0.5}};

 private:
  static std::size_t index(Sublayer sublayer) { return static_cast<std::size_t>(sublayer) - 1; }

  ModelDimensions model_;
};

/// Times and rates of all magnitudes.
inline ToyCosts random_costs(std::mt19937& random, std::int64_t num_layers = 1) {
  std::uniform_real_distribution<double> exponent(-1, 1);
  const auto draw = [&](double scale) { return scale * std::pow(10, exponent(random)); };
  ToyCosts costs(num_layers);
  for (double& seconds : costs.gpu_s) seconds = draw(2);
  for (double& seconds : costs.cpu_s) seconds = draw(20);
  for (auto& [way, rate] : costs.bytes_per_s) rate = draw(20);
  costs.head_s = {draw(1), draw(5)};
  return costs;
}

}  // namespace sluice::test
