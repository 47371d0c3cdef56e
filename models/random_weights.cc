#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <numeric>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "models/family.h"
#include "models/model.h"
#include "models/quantized/random_codes.h"
#include "models/random_values.h"

namespace sluice {
namespace {

/// Tensors made when first asked for, kept until released.
class RandomWeights : public WeightSource {
 public:
  RandomWeights(ModelConfig config, DType dtype, std::uint64_t seed)
      : config_(std::move(config)),
        dtype_(dtype),
        seed_(seed),
        family_(find_family(config_.family)) {
    check_config(config_, "random weights");
    for (TensorId id : expected_tensors(config_)) slots_.try_emplace(id.key());
  }

  TensorView tensor(TensorId id) const override {
    const auto found = slots_.find(id.key());
    if (found == slots_.end()) {
      throw Error("random weights: this model has no {} in {}", to_string(id.role), place_of(id));
    }
    TensorView view = {.name = name_of(id),
                       .file = "random weights",
                       .dtype = dtype_,
                       .shape = expected_shape(config_, id),
                       .data = {}};
    const std::size_t bytes = size_of(view);
    Slot& slot = found->second;
    const std::lock_guard lock(slot.mutex);
    if (slot.data == nullptr) {
      slot.data = std::make_unique_for_overwrite<std::byte[]>(bytes);
      fill(id.role, view.name, {slot.data.get(), bytes});
    }
    view.data = {slot.data.get(), bytes};
    return view;
  }

  void release(TensorId id) const override {
    const auto found = slots_.find(id.key());
    if (found == slots_.end()) return;
    const std::lock_guard lock(found->second.mutex);
    found->second.data.reset();
  }

  WeightFormat format(TensorId id) const override {
    const WeightFormat format = stored_format(config_, id);
    return format.is_plain() ? WeightFormat::plain(dtype_) : format;
  }

  std::shared_ptr<const QuantizedTensor> quantized(TensorId id) const override {
    const WeightFormat format = stored_format(config_, id);
    if (format.is_plain()) return nullptr;
    return random_codes(name_of(id), format, expected_shape(config_, id), seed_);
  }

  std::string identity() const override {
    std::string text = fmt::format("random weights of seed {} in {}", seed_, to_string(dtype_));
    if (!config_.layer_formats.empty())
      text +=
          fmt::format(", layers in {}", to_string(config_.layer_formats.front()[LayerWeight::qkv]));
    if (!config_.head_format.is_plain())
      text += fmt::format(", head in {}", to_string(config_.head_format));
    return text;
  }

 private:
  struct Slot {
    std::mutex mutex;
    std::unique_ptr<std::byte[]> data;
  };

  /// On all cores that this process may use, where there is enough to do.
  void fill(TensorRole role, const std::string& name, std::span<std::byte> out) const {
    constexpr std::size_t piece_bytes = std::size_t{4} << 20;
    std::atomic<std::size_t> next = 0;
    const auto work = [&] {
      for (std::size_t at = next++ * piece_bytes; at < out.size(); at = next++ * piece_bytes) {
        fill_random(role, name, seed_, dtype_, at / size_bytes(dtype_),
                    out.subspan(at, std::min(piece_bytes, out.size() - at)));
      }
    };
    std::vector<std::jthread> helpers;
    const std::size_t threads =
        std::min<std::size_t>(std::thread::hardware_concurrency(), out.size() / piece_bytes);
    for (std::size_t i = 1; i < threads; ++i) helpers.emplace_back(work);
    work();
  }

  std::string name_of(TensorId id) const {
    if (family_ != nullptr) return family_->tensor_name(id);
    if (id.layer < 0) return std::string(to_string(id.role));
    const std::string expert = id.expert < 0 ? "" : fmt::format("experts.{}.", id.expert);
    return fmt::format("layers.{}.{}{}", id.layer, expert, to_string(id.role));
  }

  std::size_t size_of(const TensorView& view) const {
    const std::int64_t elements =
        std::accumulate(view.shape.begin(), view.shape.end(), std::int64_t{1}, std::multiplies<>());
    return static_cast<std::size_t>(elements) * size_bytes(dtype_);
  }

  ModelConfig config_;
  DType dtype_;
  std::uint64_t seed_;
  const Family* family_;
  mutable std::unordered_map<std::int64_t, Slot> slots_;  // the map itself never changes
};

}  // namespace

std::shared_ptr<const WeightSource> random_weights(const ModelConfig& config, DType dtype,
                                                   std::uint64_t seed) {
  return std::make_shared<RandomWeights>(config, dtype, seed);
}

}  // namespace sluice
