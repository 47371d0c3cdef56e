#include "models/stacked_tensor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <utility>

namespace sluice {
namespace {

struct Sizes {
  std::int64_t out;
  std::int64_t in;
  explicit Sizes(const std::vector<std::int64_t>& shape)
      : out(shape.at(0)), in(shape.size() > 1 ? shape[1] : 1) {}
};

/// Calls copy(element of the part, element of the expert) for all, in blocks that stay in the
/// first-level cache both ways.
template <typename Copy>
void for_each_element(const StackedPart& part, const Sizes& sizes, const Copy& copy) {
  constexpr std::int64_t block = 32;
  const std::int64_t width = part.step * sizes.out;
  const std::int64_t of_output = part.transposed ? 1 : sizes.in;
  const std::int64_t of_input = part.transposed ? width : 1;
  for (std::int64_t first_row = 0; first_row < sizes.out; first_row += block) {
    const std::int64_t last_row = std::min(sizes.out, first_row + block);
    for (std::int64_t first = 0; first < sizes.in; first += block) {
      const std::int64_t last = std::min(sizes.in, first + block);
      for (std::int64_t row = first_row; row < last_row; ++row) {
        const std::int64_t output = part.first + part.step * row;
        for (std::int64_t column = first; column < last; ++column)
          copy(row * sizes.in + column, output * of_output + column * of_input);
      }
    }
  }
}

template <std::size_t element_bytes>
void gather_elements(const StackedPart& part, const Sizes& sizes, const std::byte* of_expert,
                     std::byte* values) {
  for_each_element(part, sizes, [&](std::int64_t of_part, std::int64_t at) {
    std::memcpy(values + static_cast<std::size_t>(of_part) * element_bytes,
                of_expert + static_cast<std::size_t>(at) * element_bytes, element_bytes);
  });
}

template <std::size_t element_bytes>
void scatter_elements(const StackedPart& part, const Sizes& sizes, const std::byte* values,
                      std::byte* of_expert) {
  for_each_element(part, sizes, [&](std::int64_t of_part, std::int64_t at) {
    std::memcpy(of_expert + static_cast<std::size_t>(at) * element_bytes,
                values + static_cast<std::size_t>(of_part) * element_bytes, element_bytes);
  });
}

}  // namespace

std::vector<std::int64_t> stack_shape(const StackedPart& part,
                                      const std::vector<std::int64_t>& shape,
                                      std::int64_t num_experts) {
  std::vector<std::int64_t> all = {num_experts, part.step * shape.at(0)};
  if (shape.size() > 1) all.insert(part.transposed ? all.begin() + 1 : all.end(), shape[1]);
  return all;
}

std::string part_name(const StackedPart& part, bool transposed) {
  std::string index = fmt::format("{}", part.expert);
  if (part.step > 1)
    index += fmt::format(", {}{}::{}", transposed ? ":, " : "", part.first, part.step);
  return fmt::format("{}[{}]", part.stack, index);
}

void gather_part(const StackedPart& part, const std::vector<std::int64_t>& shape,
                 std::size_t element_bytes, const std::byte* of_expert, std::byte* values) {
  const Sizes sizes(shape);
  if (element_bytes == 2) return gather_elements<2>(part, sizes, of_expert, values);
  gather_elements<4>(part, sizes, of_expert, values);
}

void scatter_part(const StackedPart& part, const std::vector<std::int64_t>& shape,
                  std::size_t element_bytes, const std::byte* values, std::byte* of_expert) {
  const Sizes sizes(shape);
  if (element_bytes == 2) return scatter_elements<2>(part, sizes, values, of_expert);
  scatter_elements<4>(part, sizes, values, of_expert);
}

StackedTensor::StackedTensor(const TensorView& stack, StackedPart part,
                             std::vector<std::int64_t> shape)
    : of_expert_(stack), part_(std::move(part)) {
  const std::size_t bytes = stack.data.size() / static_cast<std::size_t>(stack.shape.at(0));
  of_expert_.name = part_name(part_, part_.transposed && shape.size() > 1);
  of_expert_.shape = std::move(shape);
  of_expert_.data = stack.data.subspan(static_cast<std::size_t>(part_.expert) * bytes, bytes);
}

TensorView StackedTensor::view() const {
  if (lies_as_one()) return of_expert_;
  TensorView view = of_expert_;
  const std::size_t bytes = of_expert_.data.size() / static_cast<std::size_t>(part_.step);
  const std::lock_guard lock(mutex_);
  if (gathered_ == nullptr) {
    gathered_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
    gather_part(part_, of_expert_.shape, size_bytes(dtype()), of_expert_.data.data(),
                gathered_.get());
  }
  view.data = {gathered_.get(), bytes};
  return view;
}

void StackedTensor::release() const {
  const std::lock_guard lock(mutex_);
  gathered_.reset();
}

}  // namespace sluice
