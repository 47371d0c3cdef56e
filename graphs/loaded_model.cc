#include "graphs/loaded_model.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>

#include "base/error.h"
#include "base/log.h"
#include "base/numa.h"
#include "codelets/kernels/simd.h"
#include "codelets/kernels/strip_gemm.h"
#include "codelets/weights/plain.h"
#include "codelets/weights/quantized.h"
#include "graphs/rope.h"
#include "graphs/weight_file.h"
#include "models/quantized/quantized_tensor.h"

namespace sluice {
namespace {

void check_finite(const TensorView& tensor, const void* data, std::int64_t first,
                  std::int64_t count) {
  const std::int64_t bad = simd::find_not_finite(data, count, tensor.dtype);
  if (bad < 0) return;
  float value = 0;
  read_floats(tensor, static_cast<std::size_t>(first + bad), 1, &value);
  throw Error(
      "{}: tensor {} has {} at element {}: the file is damaged or was written by a failed "
      "training; "
      "fetch it again",
      tensor.file, tensor.name, value, first + bad);
}

const std::byte* element_pointer(const TensorView& tensor, std::int64_t index) {
  return tensor.data.data() + static_cast<std::size_t>(index) * size_bytes(tensor.dtype);
}

}  // namespace

/// Packs weights in rounds; a round's panels are spread over the threads.
struct LoadedModel::Packing {
  struct Source {
    TensorView tensor;                             ///< of a plain weight
    std::shared_ptr<const QuantizedTensor> coded;  ///< of a quantised one
    std::int64_t first_row;                        ///< in the packed weight
    std::int64_t num_rows() const { return coded ? coded->num_rows() : tensor.shape.at(0); }
  };
  struct Job {
    WeightType type;
    std::byte* packed;
    std::vector<Source> sources;
  };
  struct Panel {
    const Job* weight;
    std::int64_t panel;
  };

  /// What a file holds, or will.
  struct InFile {
    std::uint64_t offset;
    std::byte* memory;
    std::size_t size;
  };

  LoadedModel& model;
  ThreadPool& pool;
  const Progress& progress;
  const WeightHomes& homes;
  std::uint64_t total_bytes;
  std::vector<TensorId> used;
  std::deque<Job> round;
  std::deque<Buffer> passing;  ///< of the round, on their way to the file
  std::vector<InFile> in_file;

  /// What lies one behind the other in a piece of data.
  enum class Cut : std::uint8_t { by_columns, by_experts };

  /// Plans a weight from the named tensors' rows, one under the other.
  WeightHandle add(std::span<const TensorId> ids, const WeightType& type, Tier home = Tier::ddr) {
    return {type, data_of(ids, type, home)};
  }

  WeightHandle add(TensorId id, const WeightType& type, Tier home = Tier::ddr) {
    return add({&id, 1}, type, home);
  }

  DataHandle data_of(std::span<const TensorId> ids, const WeightType& type, Tier home) {
    return data_of(WeightPacking::size_bytes(type), ids.front().layer, home, Cut::by_columns,
                   [&](std::byte* memory) { plan(ids, type, memory); });
  }

  /// A chunk of these experts.
  DataHandle chunk_of(std::span<const LayerMatrix> matrices, const LayerWeightTypes& types,
                      const ExpertLayout& layout, std::int64_t layer,
                      std::span<const std::int32_t> experts, Tier home) {
    const auto plan_all = [&](std::byte* memory) {
      for (const std::int32_t expert : experts) {
        for (const LayerMatrix& matrix : matrices) {
          if (!matrix.of_each_expert) continue;
          plan(matrix.ids(layer, expert), types[matrix.weight],
               memory + layout.offset(matrix.weight));
        }
        copy_expert_biases(layer, expert, layout, memory);
        memory += layout.size_bytes();
      }
    };
    return data_of(experts.size() * layout.size_bytes(), layer, home, Cut::by_experts, plan_all);
  }

  /// Into the expert that begins there.
  void copy_expert_biases(std::int64_t layer, std::int64_t expert, const ExpertLayout& layout,
                          std::byte* memory) {
    if (!layout.has_biases()) return;
    for (const LayerTensor& tensor : layer_schema(model.config_, layer)) {
      if (!tensor.is_expert_bias()) continue;
      const TensorId id = tensor.id(layer, expert);
      const TensorView view = model.source->tensor(id);
      const std::int64_t count = tensor.shape[0];
      check_finite(view, view.data.data(), 0, count);
      std::byte* to = memory + layout.bias_offset(*weight_of_bias(tensor.role));
      read_floats(view, 0, static_cast<std::size_t>(count), reinterpret_cast<float*>(to));
      used.push_back(id);
    }
  }

  /// Part by part where its columns are the groups', else on all nodes in turn.
  void place_in_ddr(const Buffer& buffer, Cut cut) {
    if (cut == Cut::by_columns) {
      model.by_columns_.push_back(&buffer);
      if (!model.parts_.empty()) {
        try {
          bind_parts(buffer, model.parts_);
          return;
        } catch (const Error& error) {
          model.parts_.clear();
          logger().warn("{}; weights lie on all nodes in turn, whatever the CPU plan says",
                        error.what());
        }
      }
    }
    interleave_if_allowed(buffer, homes.ddr_nodes);
  }

  /// A piece of data; `plan_into(memory)` plans what is packed there.
  template <typename PlanInto>
  DataHandle data_of(std::size_t size, std::int64_t layer, Tier home, Cut cut,
                     const PlanInto& plan_into) {
    const std::uint64_t offset = homes.file != nullptr ? homes.file->place(size) : 0;
    const bool packs = homes.file == nullptr || !homes.file->is_whole();
    std::byte* memory = nullptr;
    if (home != Tier::disk) {
      const Buffer& buffer = model.keep(size);
      memory = buffer.data();
      if (layer >= 0) model.layer_buffers_[home].push_back(&buffer);
      if (home == Tier::cxl && !homes.cxl_nodes.empty()) interleave(buffer, homes.cxl_nodes);
      if (home == Tier::ddr) place_in_ddr(buffer, cut);
    } else if (packs) {
      memory = passing.emplace_back(size).data();
    }
    model.weight_bytes_ += size;
    if (packs) plan_into(memory);
    if (homes.file != nullptr && memory != nullptr) in_file.push_back({offset, memory, size});
    if (home == Tier::disk) return homes.node->data(*model.file, offset, size);
    return home == Tier::cxl ? DataHandle::of_cxl_memory(memory, size, CxlData::weights)
                             : DataHandle::of_memory(memory, size);
  }

  void plan(std::span<const TensorId> ids, const WeightType& type, std::byte* memory) {
    std::vector<Source> sources;
    std::int64_t first_row = 0;
    for (const TensorId id : ids) {
      Source& source = sources.emplace_back();
      source.first_row = first_row;
      if (type.format.is_plain()) {
        source.tensor = model.source->tensor(id);
      } else {
        source.coded = model.source->quantized(id);
      }
      first_row += source.num_rows();
      used.push_back(id);
    }
    round.push_back({type, memory, std::move(sources)});
  }

  /// Reads what stays in memory from a whole file, or writes all of the round to one that is not.
  void pass_file() {
    if (in_file.empty()) return;
    if (!homes.file->is_whole()) {
      for (const InFile& weight : in_file)
        homes.file->write(weight.offset, weight.memory, weight.size);
    } else {
      if (!opened) opened = homes.file->open();
      constexpr std::size_t piece_bytes = std::size_t{8} << 20;
      std::vector<InFile> pieces;
      for (const InFile& weight : in_file) {
        for (std::size_t done = 0; done < weight.size; done += piece_bytes) {
          pieces.push_back({weight.offset + done, weight.memory + done,
                            std::min(piece_bytes, weight.size - done)});
        }
      }
      pool.run(static_cast<std::int64_t>(pieces.size()), [&](std::int64_t i) {
        const InFile& piece = pieces[static_cast<std::size_t>(i)];
        opened->read(piece.offset, piece.size, piece.memory);
      });
      for (const InFile& weight : in_file) model.read_bytes_ += weight.size;
    }
    in_file.clear();
    passing.clear();
  }
  std::optional<DirectFile> opened = {};

  void run_round() {
    std::vector<Panel> panels;
    for (const Job& weight : round) {
      const std::int64_t count = WeightPacking::of(weight.type.format).num_panels(weight.type);
      for (std::int64_t p = 0; p < count; ++p) panels.push_back({&weight, p});
    }
    pool.run(static_cast<std::int64_t>(panels.size()),
             [&](std::int64_t i) { pack(panels[static_cast<std::size_t>(i)]); });
    for (const TensorId id : used) model.source->release(id);
    used.clear();
    round.clear();
    pass_file();
    if (progress) progress(model.weight_bytes_, total_bytes);
  }

  static void pack(const Panel& job) {
    if (job.weight->type.format.is_plain()) {
      pack_plain(job);
    } else {
      pack_codes(job);
    }
  }

  /// A strip of codes as they are.
  static void pack_codes(const Panel& job) {
    const WeightType& type = job.weight->type;
    const std::int64_t first = job.panel * strip_columns;
    const std::int64_t last = std::min(type.out, first + strip_columns);
    thread_local CodedRows rows;
    thread_local CodedRows part;
    rows.codes.clear();
    rows.scales.clear();
    rows.zero_points.clear();
    const auto append = [](auto& to, const auto& from) {
      to.insert(to.end(), from.begin(), from.end());
    };
    for (const Source& source : job.weight->sources) {
      const std::int64_t begin = std::max(first, source.first_row);
      const std::int64_t end = std::min(last, source.first_row + source.num_rows());
      if (begin >= end) continue;
      if (begin == first && end == last) {
        source.coded->read(begin - source.first_row, end - begin, rows);
      } else {
        source.coded->read(begin - source.first_row, end - begin, part);
        append(rows.codes, part.codes);
        append(rows.scales, part.scales);
        append(rows.zero_points, part.zero_points);
      }
      // Another part of the weight may need zero points where this one has none.
      if (type.format.has_zero_points) {
        rows.zero_points.resize(rows.scales.size(),
                                static_cast<std::uint8_t>(default_zero_point(type.format.codes)));
      }
    }
    pack_quantized_strip(
        type, job.panel,
        {.codes = rows.codes.data(),
         .scales = rows.scales.data(),
         .zero_points = type.format.has_zero_points ? rows.zero_points.data() : nullptr},
        job.weight->packed);
  }

  static void pack_plain(const Panel& job) {
    const PlainLayout& layout = PlainLayout::get(job.weight->type);
    const std::int64_t in = layout.type().in;
    const std::int64_t first = layout.first_column(job.panel);
    const std::int64_t last = first + layout.panel_columns(job.panel);
    const DType dtype = layout.type().format.dtype();
    thread_local Workspace scratch;
    std::byte* rows = nullptr;
    for (const Source& source : job.weight->sources) {
      const std::int64_t begin = std::max(first, source.first_row);
      const std::int64_t end = std::min(last, source.first_row + source.tensor.shape.at(0));
      if (begin >= end) continue;
      const std::int64_t element = (begin - source.first_row) * in;
      const std::byte* from = element_pointer(source.tensor, element);
      const bool as_it_lies = begin == first && end == last && source.tensor.dtype == dtype &&
                              reinterpret_cast<std::uintptr_t>(from) % size_bytes(dtype) == 0;
      if (as_it_lies) {
        if (!layout.pack_panel(job.panel, from, job.weight->packed))
          check_finite(source.tensor, from, element, (end - begin) * in);
        return;
      }
      check_finite(source.tensor, from, element, (end - begin) * in);
      const auto elements = static_cast<std::size_t>((last - first) * in);
      rows = scratch.reserve(elements * size_bytes(dtype));
      convert(source.tensor, from, (end - begin) * in, dtype,
              rows + static_cast<std::size_t>((begin - first) * in) * size_bytes(dtype));
    }
    layout.pack_panel(job.panel, rows, job.weight->packed);
  }

  static void convert(const TensorView& tensor, const std::byte* from, std::int64_t count,
                      DType dtype, std::byte* to) {
    constexpr std::int64_t chunk = 1024;
    float values[chunk];
    for (std::int64_t done = 0; done < count; done += chunk) {
      const std::int64_t some = std::min(chunk, count - done);
      simd::load_row(from + static_cast<std::size_t>(done) * size_bytes(tensor.dtype), some,
                     tensor.dtype, values);
      simd::store_row(values, some, dtype, to + static_cast<std::size_t>(done) * size_bytes(dtype));
    }
  }
};

LoadedModel::LoadedModel(const Model& model, DType dtype, ThreadPool& pool,
                         const Progress& progress, const WeightHomes& homes)
    : ModelWeights(model.config, decoder_shape(model.config, dtype)) {
  using Role = TensorRole;
  source = model.weights;
  parts_ = homes.ddr_shares;
  ddr_nodes_ = homes.ddr_nodes;
  const PausedWorkers paused;
  Packing packing{*this, pool, progress, homes, packed_weight_bytes(config_, dtype),
                  {},    {},   {},       {}};
  const PackedWeights packed(config_, dtype, homes.chunk_bytes, homes.hot_experts);
  const Tier head_home = homes.head_on_disk ? Tier::disk : Tier::ddr;

  token_table = register_table({Role::token_embedding}, &table_dtype);
  if (config_.position == PositionKind::learned) {
    positions = register_table({Role::position_embedding}, &position_dtype);
  }
  if (shape_.rope) frequencies = register_floats(rope_frequencies(config_));
  if (packed.project_in) project_in = packing.add({Role::project_in}, *packed.project_in);
  if (packed.project_out) project_out = packing.add({Role::project_out}, *packed.project_out);
  if (config_.tied_embeddings) {
    // The table must stay readable for the embedding, so it is not released after packing.
    head = packing.add({Role::token_embedding}, packed.head, head_home);
    if (!packing.used.empty()) packing.used.pop_back();
  } else {
    head = packing.add({Role::lm_head}, packed.head, head_home);
  }
  packing.run_round();

  for (std::int64_t layer = 0; layer < config_.num_layers; ++layer) {
    LayerWeights& weights = layers_.emplace_back();
    load_vectors(layer, &weights.vectors);
    const Tier home = homes.of_layer(layer);
    const LayerWeightTypes& types = packed.layers.at(static_cast<std::size_t>(layer));
    const std::vector<LayerMatrix> matrices = layer_matrices(config_, layer);
    for (const LayerMatrix& matrix : matrices) {
      if (matrix.of_each_expert) continue;
      weights.matrices[matrix.weight] = packing.add(matrix.ids(layer), types[matrix.weight], home);
    }
    packing.run_round();
    weights.experts = {.layout = ExpertLayout::of(types, packed.mixture),
                       .cut = packed.experts.at(static_cast<std::size_t>(layer)),
                       .chunks = {},
                       .places = {}};
    const ExpertChunks& cut = weights.experts.cut;
    const ExpertOrder order(cut.num_experts, hot_experts_of(homes.hot_experts, layer));
    for (std::int32_t chunk = 0; chunk < cut.count(); ++chunk) {
      const auto experts = std::span(order.experts)
                               .subspan(static_cast<std::size_t>(cut.first_of(chunk)),
                                        static_cast<std::size_t>(cut.size_of(chunk)));
      weights.experts.chunks.push_back(
          packing.chunk_of(matrices, types, weights.experts.layout, layer, experts, home));
      packing.run_round();
    }
    if (cut.num_hot > 0) weights.experts.places = register_numbers(order.places);
  }
  if (homes.file != nullptr) {
    if (!homes.file->is_whole()) homes.file->publish();
    *file = homes.file->open();
  }
  if (config_.final_norm && config_.norm_affine) {
    std::vector<float> values(static_cast<std::size_t>(config_.hidden_size));
    const auto append = [&](Role role, std::size_t at) {
      values.resize(at + static_cast<std::size_t>(config_.hidden_size));
      const TensorView tensor = source->tensor({role});
      check_finite(tensor, tensor.data.data(), 0, config_.hidden_size);
      read_floats(tensor, 0, static_cast<std::size_t>(config_.hidden_size), values.data() + at);
    };
    append(Role::final_norm_weight, 0);
    if (config_.norm == NormKind::layer_norm) append(Role::final_norm_bias, values.size());
    final_norm = register_floats(values);
  }
}

LoadedModel::Pages LoadedModel::layer_pages(Tier tier) const {
  constexpr std::uint64_t most = std::uint64_t{1} << 20;
  Pages pages;
  const auto found = layer_buffers_.find(tier);
  if (found == layer_buffers_.end()) return pages;
  std::uint64_t all = 0;
  for (const Buffer* buffer : found->second) all += num_pages(*buffer);
  // Odd, so that it meets every place within huge pages.
  pages.every = all <= most ? 1 : all / most | 1U;
  for (const Buffer* buffer : found->second) {
    pages.asked += (num_pages(*buffer) + pages.every - 1) / pages.every;
    for (const auto& [node, count] : pages_by_node(*buffer, pages.every))
      pages.by_node[node] += count;
  }
  return pages;
}

std::vector<PartPages> LoadedModel::pages_by_part() const {
  constexpr std::uint64_t most = std::uint64_t{1} << 20;
  std::vector<PartPages> parts;
  if (parts_.empty()) return parts;
  for (const NodeShare& part : parts_) parts.push_back({.part = part});
  std::uint64_t all = 0;
  for (const Buffer* buffer : by_columns_) all += num_pages(*buffer);
  const std::uint64_t every = all <= most ? 1 : all / most | 1U;
  for (const Buffer* buffer : by_columns_) {
    const std::vector<std::uint64_t> borders = first_pages(num_pages(*buffer), parts_);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      parts[i].asked += (borders[i + 1] - borders[i] + every - 1) / every;
      for (const auto& [node, count] : pages_by_node(*buffer, every, borders[i], borders[i + 1])) {
        if (node == parts_[i].node) parts[i].found += count;
      }
    }
  }
  return parts;
}

void LoadedModel::move_parts(const std::vector<NodeShare>& parts) {
  if (parts == parts_) return;
  parts_ = parts;
  for (const Buffer* buffer : by_columns_) {
    if (!parts.empty()) {
      bind_parts(*buffer, parts, TouchedPages::move);
    } else if (!ddr_nodes_.empty()) {
      interleave(*buffer, ddr_nodes_, TouchedPages::move);
    }
  }
}

Buffer& LoadedModel::keep(std::size_t size_bytes) { return buffers.emplace_back(size_bytes); }

DataHandle LoadedModel::register_table(TensorId id, DType* dtype) {
  const TensorView& tensor = tables.emplace_back(source->tensor(id));
  *dtype = tensor.dtype;
  return DataHandle::of_memory(tensor.data.data(), tensor.data.size());
}

DataHandle LoadedModel::register_floats(const std::vector<float>& values) {
  const std::size_t bytes = values.size() * sizeof(float);
  weight_bytes_ += bytes;
  Buffer& buffer = keep(bytes);
  std::memcpy(buffer.data(), values.data(), bytes);
  return DataHandle::of_memory(buffer.data(), bytes);
}

DataHandle LoadedModel::register_numbers(const std::vector<std::int32_t>& values) {
  Buffer& buffer = keep(values.size() * sizeof(std::int32_t));
  std::memcpy(buffer.data(), values.data(), buffer.size());
  return DataHandle::of_memory(buffer.data(), buffer.size());
}

void LoadedModel::load_vectors(std::int64_t layer, DataHandle* handle) {
  std::vector<float> values;
  for (const LayerTensor& of_layer : layer_schema(config_, layer)) {
    if (!of_layer.is_vector()) continue;
    const TensorView tensor = source->tensor(of_layer.id(layer));
    const std::int64_t count = tensor.shape.at(0);
    check_finite(tensor, tensor.data.data(), 0, count);
    const std::size_t begin = values.size();
    values.resize(begin + static_cast<std::size_t>(count));
    read_floats(tensor, 0, static_cast<std::size_t>(count), values.data() + begin);
  }
  if (values.empty()) values.push_back(0.0F);  // StarPU registers no empty data
  *handle = register_floats(values);
}

}  // namespace sluice
