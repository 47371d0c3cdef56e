#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "models/family.h"
#include "models/weights.h"

namespace sluice {

/// The shape of the plain tensor of all experts, one of whose parts has `shape`, [out, in] or
/// [out]: [num_experts, step * out, in], transposed [num_experts, in, step * out], or [num_experts,
/// step * out].
std::vector<std::int64_t> stack_shape(const StackedPart& part,
                                      const std::vector<std::int64_t>& shape,
                                      std::int64_t num_experts);

/// "model.layers.0.mlp.experts.gate_up_proj[3, :, 0::2]", as NumPy would have it, for messages;
/// `transposed` as it is stored.
std::string part_name(const StackedPart& part, bool transposed);

/// One expert's part as a tensor of its own, of `shape`, from what the stack has of the expert, in
/// elements of 2 or 4 bytes; and back.
void gather_part(const StackedPart& part, const std::vector<std::int64_t>& shape,
                 std::size_t element_bytes, const std::byte* of_expert, std::byte* values);
void scatter_part(const StackedPart& part, const std::vector<std::int64_t>& shape,
                  std::size_t element_bytes, const std::byte* values, std::byte* of_expert);

/// A plain tensor that a checkpoint has within the one of all experts. What does not lie there as
/// one piece is put together when it is asked for, and kept until released.
class StackedTensor {
 public:
  /// `stack` has stack_shape().
  StackedTensor(const TensorView& stack, StackedPart part, std::vector<std::int64_t> shape);

  /// Safe to call from several threads. Void when release() is called.
  TensorView view() const;
  void release() const;
  DType dtype() const { return of_expert_.dtype; }
  /// What the stack has of the expert.
  std::span<const std::byte> stored() const { return of_expert_.data; }

 private:
  bool lies_as_one() const { return !part_.transposed && part_.step == 1; }

  TensorView of_expert_;  ///< with the part's name and shape
  StackedPart part_;
  mutable std::mutex mutex_;
  mutable std::unique_ptr<std::byte[]> gathered_;
};

}  // namespace sluice
