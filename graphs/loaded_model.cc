#include "graphs/loaded_model.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/error.h"
#include "base/numa.h"
#include "codelets/kernels/linear.h"
#include "codelets/kernels/simd.h"
#include "graphs/rope.h"
#include "graphs/weight_file.h"

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

DecoderShape decoder_shape(const ModelConfig& config, DType dtype) {
  if (config.position == PositionKind::alibi) {
    throw Error(
        "models with ALiBi positions ({}) are known for planning and simulation only; they cannot "
        "run",
        config.family);
  }
  if (config.num_experts > 0) {
    throw Error(
        "mixtures of experts ({}) are known for planning and simulation only; they cannot run",
        config.family);
  }
  return imagined_decoder_shape(config, dtype);
}

DecoderShape imagined_decoder_shape(const ModelConfig& config, DType dtype) {
  return {.hidden_size = config.hidden_size,
          .num_heads = config.num_heads,
          .num_kv_heads = config.num_kv_heads,
          .head_dim = config.head_dim,
          .ffn_size = config.ffn_size * std::max<std::int64_t>(1, config.experts_per_token),
          .sliding_window_tokens = config.sliding_window_tokens,
          .norm = config.norm,
          .norm_place = config.norm_place,
          .norm_eps = config.norm_eps,
          .activation = config.activation,
          .gated_ffn = config.gated_ffn,
          .rope = config.position == PositionKind::rope,
          .dtype = dtype};
}

VectorLayout vector_layout(const ModelConfig& config) {
  VectorLayout layout;
  const auto take = [&layout](bool present, std::int64_t size) {
    const std::int64_t at = layout.num_elements;
    if (present) layout.num_elements += size;
    return present ? at : -1;
  };
  const bool norm_bias = config.norm_affine && config.norm == NormKind::layer_norm;
  layout.attention_norm_weight = take(config.norm_affine, config.hidden_size);
  layout.attention_norm_bias = take(norm_bias, config.hidden_size);
  layout.qkv_bias = take(config.qkv_bias, config.q_size() + 2 * config.kv_size());
  layout.out_bias = take(config.out_bias, config.hidden_size);
  layout.ffn_norm_weight = take(config.norm_affine, config.hidden_size);
  layout.ffn_norm_bias = take(norm_bias, config.hidden_size);
  layout.fc1_bias = take(config.ffn_bias, config.ffn_size);
  layout.fc2_bias = take(config.ffn_bias, config.hidden_size);
  layout.gate_bias = take(config.ffn_bias && config.gated_ffn, config.ffn_size);
  return layout;
}

std::vector<LinearShape> layer_linears(const ModelConfig& config, DType dtype) {
  const DecoderShape shape = decoder_shape(config, dtype);
  std::vector<LinearShape> linears = {{shape.hidden_size, shape.qkv_size(), dtype},
                                      {shape.q_size(), shape.hidden_size, dtype},
                                      {shape.hidden_size, shape.ffn_size, dtype},
                                      {shape.ffn_size, shape.hidden_size, dtype}};
  if (shape.gated_ffn) linears.push_back({shape.hidden_size, shape.ffn_size, dtype});
  return linears;
}

std::vector<LinearShape> packed_linears(const ModelConfig& config, DType dtype) {
  const std::vector<LinearShape> layer = layer_linears(config, dtype);
  std::vector<LinearShape> linears;
  linears.reserve(3 + static_cast<std::size_t>(config.num_layers) * layer.size());
  if (config.has_projections()) {
    linears.push_back({config.embed_size, config.hidden_size, dtype});
    linears.push_back({config.hidden_size, config.embed_size, dtype});
  }
  linears.push_back({config.embed_size, config.vocab_size, dtype});
  for (std::int64_t i = 0; i < config.num_layers; ++i)
    linears.insert(linears.end(), layer.begin(), layer.end());
  return linears;
}

std::uint64_t packed_weight_bytes(const ModelConfig& config, DType dtype) {
  std::uint64_t total = static_cast<std::uint64_t>(config.num_layers) * sizeof(float) *
                        static_cast<std::uint64_t>(vector_layout(config).num_elements);
  for (const LinearShape& shape : packed_linears(config, dtype))
    total += PackedLayout::get(shape).size_bytes();
  return total;
}

/// Packs weights in rounds; a round's panels are spread over the threads.
struct LoadedModel::Packing {
  struct Source {
    TensorView tensor;
    std::int64_t first_row;  ///< in the packed weight
  };
  struct Weight {
    const PackedLayout* layout;
    std::byte* packed;
    std::vector<Source> sources;
  };
  struct Panel {
    const Weight* weight;
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
  std::deque<Weight> round;
  std::deque<Buffer> passing;  ///< of the round, on their way to the file
  std::vector<InFile> in_file;

  /// Plans [out, in] from the named tensors' rows, one under the other.
  DataHandle add(std::initializer_list<TensorId> ids, std::int64_t in, Tier home = Tier::ddr) {
    std::int64_t out = 0;
    for (const TensorId id : ids) out += expected_shape(model.config_, id.role).at(0);
    const PackedLayout& layout = PackedLayout::get({in, out, model.shape_.dtype});
    const std::size_t size = layout.size_bytes();
    const std::uint64_t offset = homes.file != nullptr ? homes.file->place(size) : 0;
    const bool packs = homes.file == nullptr || !homes.file->is_whole();
    std::byte* memory = nullptr;
    if (home != Tier::disk) {
      const Buffer& buffer = model.keep(size);
      memory = buffer.data();
      if (ids.begin()->layer >= 0) model.layer_buffers_[home].push_back(&buffer);
      if (home == Tier::cxl && !homes.cxl_nodes.empty()) interleave(buffer, homes.cxl_nodes);
      if (home == Tier::ddr) interleave_if_allowed(buffer, homes.ddr_nodes);
    } else if (packs) {
      memory = passing.emplace_back(size).data();
    }
    model.weight_bytes_ += size;
    if (packs) plan(ids, layout, memory);
    if (homes.file != nullptr && memory != nullptr) in_file.push_back({offset, memory, size});
    if (home == Tier::disk) return homes.node->data(*model.file_, offset, size);
    return home == Tier::cxl ? DataHandle::of_cxl_memory(memory, size, CxlData::weights)
                             : DataHandle::of_memory(memory, size);
  }

  void plan(std::initializer_list<TensorId> ids, const PackedLayout& layout, std::byte* memory) {
    std::vector<Source> sources;
    std::int64_t first_row = 0;
    for (const TensorId id : ids) {
      sources.push_back({model.source_->tensor(id), first_row});
      first_row += sources.back().tensor.shape.at(0);
      used.push_back(id);
    }
    round.push_back({&layout, memory, std::move(sources)});
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
    for (const Weight& weight : round) {
      for (std::int64_t p = 0; p < weight.layout->num_panels(); ++p) panels.push_back({&weight, p});
    }
    pool.run(static_cast<std::int64_t>(panels.size()),
             [&](std::int64_t i) { pack(panels[static_cast<std::size_t>(i)]); });
    for (const TensorId id : used) model.source_->release(id);
    used.clear();
    round.clear();
    pass_file();
    if (progress) progress(model.weight_bytes_, total_bytes);
  }

  static void pack(const Panel& job) {
    const PackedLayout& layout = *job.weight->layout;
    const std::int64_t in = layout.shape().in;
    const std::int64_t first = layout.first_column(job.panel);
    const std::int64_t last = first + layout.panel_columns(job.panel);
    const DType dtype = layout.shape().dtype;
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
    : config_(model.config),
      source_(model.weights),
      shape_(decoder_shape(model.config, dtype)),
      vectors_(vector_layout(model.config)) {
  using Role = TensorRole;
  const PausedWorkers paused;
  Packing packing{*this, pool, progress, homes, packed_weight_bytes(config_, dtype),
                  {},    {},   {},       {}};
  const Tier head_home = homes.head_on_disk ? Tier::disk : Tier::ddr;

  token_table = register_table({Role::token_embedding}, &table_dtype);
  if (config_.position == PositionKind::learned) {
    positions = register_table({Role::position_embedding}, &position_dtype);
  }
  if (shape_.rope) frequencies = register_floats(rope_frequencies(config_));
  if (config_.has_projections()) {
    project_in = packing.add({{Role::project_in}}, config_.embed_size);
    project_out = packing.add({{Role::project_out}}, config_.hidden_size);
  }
  if (config_.tied_embeddings) {
    // The table must stay readable for the embedding, so it is not released after packing.
    head = packing.add({{Role::token_embedding}}, config_.embed_size, head_home);
    if (!packing.used.empty()) packing.used.pop_back();
  } else {
    head = packing.add({{Role::lm_head}}, config_.embed_size, head_home);
  }
  packing.run_round();

  for (std::int64_t layer = 0; layer < config_.num_layers; ++layer) {
    LayerWeights& weights = layers_.emplace_back();
    load_vectors(layer, &weights.vectors);
    const Tier home = homes.of_layer(layer);
    weights.qkv =
        packing.add({{Role::q_weight, layer}, {Role::k_weight, layer}, {Role::v_weight, layer}},
                    config_.hidden_size, home);
    weights.out = packing.add({{Role::out_weight, layer}}, config_.q_size(), home);
    weights.fc1 = packing.add({{Role::fc1_weight, layer}}, config_.hidden_size, home);
    weights.fc2 = packing.add({{Role::fc2_weight, layer}}, config_.ffn_size, home);
    if (config_.gated_ffn)
      weights.gate = packing.add({{Role::gate_weight, layer}}, config_.hidden_size, home);
    packing.run_round();
  }
  if (homes.file != nullptr) {
    if (!homes.file->is_whole()) homes.file->publish();
    *file_ = homes.file->open();
  }
  if (config_.final_norm && config_.norm_affine) {
    std::vector<float> values(static_cast<std::size_t>(config_.hidden_size));
    const auto append = [&](Role role, std::size_t at) {
      values.resize(at + static_cast<std::size_t>(config_.hidden_size));
      const TensorView tensor = source_->tensor({role});
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

Buffer& LoadedModel::keep(std::size_t size_bytes) { return buffers_.emplace_back(size_bytes); }

DataHandle LoadedModel::register_table(TensorId id, DType* dtype) {
  const TensorView& tensor = tables_.emplace_back(source_->tensor(id));
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

void LoadedModel::load_vectors(std::int64_t layer, DataHandle* handle) {
  using Role = TensorRole;
  std::vector<float> values(static_cast<std::size_t>(vectors_.num_elements));
  const auto put = [&](std::int64_t at, std::initializer_list<Role> roles) {
    if (at < 0) return;
    for (const Role role : roles) {
      const TensorView tensor = source_->tensor({role, layer});
      const std::int64_t count = tensor.shape.at(0);
      check_finite(tensor, tensor.data.data(), 0, count);
      read_floats(tensor, 0, static_cast<std::size_t>(count), values.data() + at);
      at += count;
    }
  };
  put(vectors_.attention_norm_weight, {Role::attention_norm_weight});
  put(vectors_.attention_norm_bias, {Role::attention_norm_bias});
  put(vectors_.qkv_bias, {Role::q_bias, Role::k_bias, Role::v_bias});
  put(vectors_.out_bias, {Role::out_bias});
  put(vectors_.ffn_norm_weight, {Role::ffn_norm_weight});
  put(vectors_.ffn_norm_bias, {Role::ffn_norm_bias});
  put(vectors_.fc1_bias, {Role::fc1_bias});
  put(vectors_.fc2_bias, {Role::fc2_bias});
  put(vectors_.gate_bias, {Role::gate_bias});
  if (values.empty()) values.push_back(0.0F);  // StarPU registers no empty data
  *handle = register_floats(values);
}

}  // namespace sluice
