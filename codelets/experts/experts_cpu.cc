#include <algorithm>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "codelets/experts/experts.h"
#include "codelets/kernels/linear.h"
#include "codelets/runtime/routing_recorder.h"
#include "codelets/runtime/runtime.h"

namespace sluice {
namespace {

/// Rows whose experts are computed together: what passes between the products is theirs.
constexpr std::int64_t block_rows = 1024;

/// Rows by those of a task's experts that they go through. An entry is a row at one of its experts;
/// those of an expert are neighbours.
class RowsOfExperts {
 public:
  RowsOfExperts(const ExpertsArgs& args, const ExpertChoice* routing, const std::int32_t* places,
                std::int64_t rows)
      : per_row_(args.mixture.experts_per_token) {
    const std::int64_t num_choices = rows * per_row_;
    const std::int32_t first = args.first_place();
    std::vector<std::int64_t> next(static_cast<std::size_t>(args.experts_of_task()));
    // Of the task's experts; those of others are beyond the end.
    const auto number_of = [&](std::int64_t i) {
      const std::int32_t expert = routing[i].expert;
      const std::int32_t place = places == nullptr ? expert : places[expert];
      return static_cast<std::size_t>(static_cast<std::uint32_t>(place - first));
    };
    for (std::int64_t i = 0; i < num_choices; ++i) {
      // It may come from another device, whose router has failed.
      if (routing[i].expert < 0 || routing[i].expert >= args.mixture.num_experts) {
        throw Error("row {} is routed to expert {} of {}", i / per_row_, routing[i].expert,
                    args.mixture.num_experts);
      }
      if (number_of(i) < next.size()) ++next[number_of(i)];
    }
    std::int64_t begin = 0;
    for (std::size_t expert = 0; expert < next.size(); ++expert) {
      const std::int64_t count = next[expert];
      next[expert] = begin;
      if (count > 0) ranges_.push_back({first + static_cast<std::int32_t>(expert), {begin, count}});
      begin += count;
    }
    rows_.resize(static_cast<std::size_t>(begin));
    entries_.assign(static_cast<std::size_t>(num_choices), no_entry);
    for (std::int64_t i = 0; i < num_choices; ++i) {
      if (number_of(i) >= next.size()) continue;
      const std::int64_t entry = next[number_of(i)]++;
      entries_[static_cast<std::size_t>(i)] = entry;
      rows_[static_cast<std::size_t>(entry)] = i / per_row_;
    }
  }

  static constexpr std::int64_t no_entry = -1;

  struct Range {
    std::int32_t place;
    RowRange entries;
  };
  /// Of each expert that has rows, by place.
  const std::vector<Range>& ranges() const { return ranges_; }
  std::int64_t num_entries() const { return std::ssize(rows_); }
  std::int64_t row_of(std::int64_t entry) const { return rows_[static_cast<std::size_t>(entry)]; }
  /// Of a row's i-th expert; no_entry for one of another task.
  std::int64_t entry_of(std::int64_t row, std::int64_t i) const {
    return entries_[static_cast<std::size_t>(row * per_row_ + i)];
  }

 private:
  std::int64_t per_row_;
  std::vector<Range> ranges_;
  std::vector<std::int64_t> rows_;
  std::vector<std::int64_t> entries_;
};

/// Where the values of a block's entries lie in the workspace.
struct Parts {
  std::size_t x_bytes;  ///< [entries, hidden_size], as the normed rows
  std::size_t h_bytes;  ///< [entries, ffn_size]
  std::size_t y_bytes;  ///< [entries, hidden_size] f32

  Parts(const DecoderShape& shape, std::int64_t entries) {
    const auto bytes = [&](std::int64_t width, std::size_t element) {
      return (static_cast<std::size_t>(entries * width) * element + 63) / 64 * 64;
    };
    const std::size_t element = size_bytes(shape.dtype);
    x_bytes = bytes(activation_stride(shape.hidden_size, shape.dtype), element);
    h_bytes = bytes(activation_stride(shape.ffn_size, shape.dtype), element);
    y_bytes = bytes(shape.hidden_size, sizeof(float));
  }
  std::size_t sum() const { return x_bytes + h_bytes + y_bytes; }
};

/// Where what an expert has begins.
const std::byte* start_of(const ExpertsOperands& operands, std::int32_t place) {
  const ExpertsArgs& args = *operands.args;
  const std::int32_t chunk = args.chunks.chunk_of(place);
  const auto in_chunk = static_cast<std::size_t>(place - args.chunks.first_of(chunk));
  return operands.chunks.at(static_cast<std::size_t>(chunk - args.first_chunk)) +
         in_chunk * args.layout.size_bytes();
}

/// dst = the weighted sum of a row's outputs, n wide each, one after the other; or that added to
/// it.
void add_weighted(const ExpertsArgs& args, const RowsOfExperts& of, const ExpertChoice* choices,
                  const float* outputs, std::int64_t row, float* dst) {
  const std::int64_t n = args.shape.hidden_size;
  if (args.sum == ExpertsArgs::Sum::written) std::fill_n(dst, n, 0.0F);
  for (std::int64_t i = 0; i < args.mixture.experts_per_token; ++i) {
    const std::int64_t entry = of.entry_of(row, i);
    if (entry == RowsOfExperts::no_entry) continue;
    const float weight = choices[i].weight;
    const float* from = outputs + entry * n;
    for (std::int64_t column = 0; column < n; ++column) dst[column] += weight * from[column];
  }
}

void run_block(const CpuContext& cpu, const ExpertsOperands& operands, std::int64_t rows) {
  const ExpertsArgs& args = *operands.args;
  SublayerClock clock(cpu.times, args.tag.phase);
  const DecoderShape& shape = args.shape;
  const std::int64_t count = args.mixture.experts_per_token;
  const RowsOfExperts of(args, operands.routing, operands.places, rows);
  const std::size_t element = size_bytes(shape.dtype);
  const std::int64_t x_stride = activation_stride(shape.hidden_size, shape.dtype);
  const std::int64_t h_stride = activation_stride(shape.ffn_size, shape.dtype);
  const std::size_t row_bytes = static_cast<std::size_t>(x_stride) * element;
  const Parts parts(shape, of.num_entries());
  std::byte* x = cpu.workspace.reserve(parts.sum());
  std::byte* h = x + parts.x_bytes;
  auto* y = reinterpret_cast<float*>(h + parts.h_bytes);

  cpu.pool.run(of.num_entries(), [&](std::int64_t entry) {
    const auto row = static_cast<std::size_t>(of.row_of(entry));
    std::memcpy(x + static_cast<std::size_t>(entry) * row_bytes, operands.normed + row * row_bytes,
                row_bytes);
  });
  std::vector<WeightedRows> first;
  std::vector<WeightedRows> second;
  for (const RowsOfExperts::Range& range : of.ranges()) {
    const ExpertLayout& layout = args.layout;
    const std::byte* expert = start_of(operands, range.expert);
    WeightedRows& rows_of_expert = first.emplace_back();
    rows_of_expert.rows = range.entries;
    rows_of_expert.weight = expert + layout.offset(LayerWeight::fc1);
    rows_of_expert.bias = layout.bias(expert, LayerWeight::fc1);
    if (shape.gated_ffn) {
      rows_of_expert.gate = expert + layout.offset(LayerWeight::gate);
      rows_of_expert.gate_bias = layout.bias(expert, LayerWeight::gate);
    }
    second.push_back({.rows = range.entries,
                      .weight = expert + layout.offset(LayerWeight::fc2),
                      .bias = layout.bias(expert, LayerWeight::fc2)});
  }
  if (shape.gated_ffn) {
    gated_linear(cpu.pool, {.gate = {args.layout.gate, nullptr},
                            .up = {args.layout.fc1, nullptr},
                            .dtype = shape.dtype,
                            .x = x,
                            .rows = of.num_entries(),
                            .x_stride = x_stride,
                            .activation = epilogue_of(shape.activation),
                            .limit = shape.swiglu_limit,
                            .dst = h,
                            .dst_stride = h_stride,
                            .groups = first});
  } else {
    linear(cpu.pool, {.weight = {args.layout.fc1, nullptr},
                      .dtype = shape.dtype,
                      .x = x,
                      .rows = of.num_entries(),
                      .x_stride = x_stride,
                      .epilogue = epilogue_of(shape.activation),
                      .dst = h,
                      .dst_dtype = shape.dtype,
                      .dst_stride = h_stride,
                      .groups = first});
  }
  clock.end_of(Sublayer::fc1);
  linear(cpu.pool, {.weight = {args.layout.fc2, nullptr},
                    .dtype = shape.dtype,
                    .x = h,
                    .rows = of.num_entries(),
                    .x_stride = h_stride,
                    .dst = y,
                    .groups = second});
  cpu.pool.run(rows, [&](std::int64_t row) {
    add_weighted(args, of, operands.routing + row * count, y, row,
                 operands.sum + row * shape.hidden_size);
  });
  clock.end_of(Sublayer::fc2);
}

}  // namespace

std::size_t experts_workspace_bytes(const DecoderShape& shape, const MixtureShape& mixture,
                                    std::int64_t rows) {
  return Parts(shape, std::min(rows, block_rows) * mixture.experts_per_token).sum();
}

void experts_cpu(const CpuContext& cpu, const ExpertsOperands& operands) {
  const ExpertsArgs& args = *operands.args;
  const DecoderShape& shape = args.shape;
  const std::int64_t rows = args.tag.num_tokens;
  const bool is_last = args.first_chunk + args.chunks_of_task() == args.chunks.count();
  if (cpu.routing != nullptr && is_last) {  // once a layer
    const auto choices = static_cast<std::size_t>(rows * args.mixture.experts_per_token);
    cpu.routing->add(args.tag.layer, args.mixture, {operands.routing, choices});
  }
  const auto row_bytes =
      static_cast<std::size_t>(activation_stride(shape.hidden_size, shape.dtype)) *
      size_bytes(shape.dtype);
  for (std::int64_t first = 0; first < rows; first += block_rows) {
    ExpertsOperands block = operands;
    block.normed += static_cast<std::size_t>(first) * row_bytes;
    block.routing += first * args.mixture.experts_per_token;
    block.sum += first * shape.hidden_size;
    run_block(cpu, block, std::min(block_rows, rows - first));
  }
}

}  // namespace sluice
