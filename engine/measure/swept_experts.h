#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "codelets/experts/experts.h"
#include "codelets/runtime/runtime.h"
#include "graphs/loaded_model.h"
#include "models/config.h"

namespace sluice {

/// The experts of one layer of a mixture, with random weights in the model's formats, and rows that
/// each go through different ones, all with the same chances.
class SweptExperts {
 public:
  /// Nothing for a model without experts.
  static std::optional<SweptExperts> of(const ModelConfig& model, DType dtype, ThreadPool& pool);

  /// Chooses the experts of `rows` rows, for several calls.
  void prepare(std::int64_t rows);
  /// Another choice with each call; all begin again behind the last one.
  void run(const CpuContext& cpu);

  const MixtureShape& mixture() const { return args_.mixture; }
  std::int64_t hidden_size() const { return args_.shape.hidden_size; }
  std::int64_t ffn_size() const { return args_.shape.ffn_size; }
  /// Of one expert.
  std::size_t expert_bytes() const { return args_.layout.size_bytes(); }
  double expert_elements() const;
  /// Different experts that the prepared rows go through, the mean over the choices.
  double touched() const;

 private:
  SweptExperts(const ModelConfig& model, DType dtype, ThreadPool& pool);

  std::unique_ptr<LoadedModel> loaded_;  ///< one layer
  ExpertsArgs args_;
  std::vector<const std::byte*> chunks_;
  Buffer normed_;
  std::vector<float> sum_;
  std::vector<std::vector<ExpertChoice>> choices_;
  std::size_t next_ = 0;
};

}  // namespace sluice
