#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <vector>

#include "base/memory.h"
#include "codelets/kernels/linear.h"
#include "codelets/runtime/disk_node.h"
#include "codelets/runtime/runtime.h"
#include "codelets/runtime/shape.h"
#include "graphs/kv_cache.h"
#include "models/model.h"
#include "perfmodels/memory_plan.h"

namespace sluice {

/// Of one expert of a mixture.
struct ExpertWeights {
  DataHandle gate;
  DataHandle fc1;
  DataHandle fc2;
};

/// The weights of one decoder layer as StarPU handles.
struct LayerWeights {
  DataHandle vectors;                  ///< f32, see VectorLayout
  DataHandle qkv;                      ///< packed [qkv_size, hidden_size]
  DataHandle out;                      ///< packed [hidden_size, q_size]
  DataHandle gate;                     ///< packed [ffn_size, hidden_size], gated FFN only
  DataHandle fc1;                      ///< packed [ffn_size, hidden_size]
  DataHandle fc2;                      ///< packed [hidden_size, ffn_size]
  std::vector<ExpertWeights> experts;  ///< imagined mixtures only, in place of gate, fc1, fc2
};

/// What the kernels need to know of a model that computes in `dtype` (f32 or bf16). Throws Error
/// for one that cannot run.
DecoderShape decoder_shape(const ModelConfig& config, DType dtype);
/// The same for a graph without kernels: ALiBi's positions are in no data, and of a mixture of
/// experts ffn_size is what passes from fc1 to fc2 of all the experts that a row goes through.
DecoderShape imagined_decoder_shape(const ModelConfig& config, DType dtype);
/// Where each small vector of a layer lies.
VectorLayout vector_layout(const ModelConfig& config);
/// The weights that are packed, in the order in which LoadedModel packs them: what stands before
/// and behind the layers, then each layer's.
std::vector<LinearShape> packed_linears(const ModelConfig& config, DType dtype);
/// Those of one layer.
std::vector<LinearShape> layer_linears(const ModelConfig& config, DType dtype);
/// Bytes of all packed weights and vectors: what LoadedModel will take of memory.
std::uint64_t packed_weight_bytes(const ModelConfig& config, DType dtype);

class WeightFile;

/// Where packed weights live. Norms, biases and tables are always in DDR.
struct WeightHomes {
  std::vector<Tier> layers;    ///< ddr, cxl or disk; none: all in DDR
  bool head_on_disk = false;   ///< the LM head; else in DDR
  std::vector<int> cxl_nodes;  ///< NUMA nodes that CXL memory is spread over; none: it is DDR
  std::vector<int> ddr_nodes;  ///< the same of DDR; none: as the system puts it
  WeightFile* file = nullptr;  ///< with a disk: all weights, in it or to be written there
  DiskNode* node = nullptr;    ///< with a disk

  Tier of_layer(std::int64_t layer) const {
    return layers.empty() ? Tier::ddr : layers.at(static_cast<std::size_t>(layer));
  }
};

/// A model's weights, packed for the CPU, one copy, each a StarPU handle. Embedding rows are read
/// where the checkpoint lies.
class LoadedModel {
 public:
  /// Called from the loading thread with bytes packed so far and in all.
  using Progress = std::function<void(std::uint64_t done_bytes, std::uint64_t total_bytes)>;

  /// Packs in parallel on `pool`. Throws Error on a weight that is NaN or infinite, with its name
  /// and place. With a disk, packs into its file first if that is not whole, one layer at a time,
  /// publishes it, and keeps in memory only what does not live there; from a file that is whole it
  /// reads that.
  LoadedModel(const Model& model, DType dtype, ThreadPool& pool, const Progress& progress = {},
              const WeightHomes& homes = {});

  /// Weights of `weight_bits` an element that no kernel will look into, for simulation: each on its
  /// tier's node. Of a tensor whose parts live on several tiers (query, key, value), the part in
  /// HBM takes its room there, and the rest is what moves, from the slowest of its tiers. Throws
  /// Error when a node is too small.
  LoadedModel(const ModelConfig& config, DType dtype, double weight_bits, const MemoryPlan& memory,
              const TierNodes& nodes);

  const ModelConfig& config() const { return config_; }
  const DecoderShape& shape() const { return shape_; }
  const VectorLayout& vectors() const { return vectors_; }
  std::uint64_t weight_bytes() const { return weight_bytes_; }
  /// Of those, what came ready packed out of the disk's file.
  std::uint64_t read_bytes() const { return read_bytes_; }
  /// Where the layers' packed weights are that live in a tier of the host's memory: all pages of
  /// small models; of large ones a sample of a million. Throws Error when the system does not say.
  struct Pages {
    std::uint64_t asked = 0;               ///< pages that were looked at
    std::uint64_t every = 1;               ///< one in so many was
    std::map<int, std::uint64_t> by_node;  ///< those in use, by NUMA node
  };
  Pages layer_pages(Tier tier) const;

  const std::vector<LayerWeights>& layers() const { return layers_; }
  DataHandle token_table;  ///< [vocab_size, embed_size] as stored
  DataHandle positions;    ///< learned position table as stored, or empty
  DataHandle project_in;   ///< packed, or empty
  DataHandle project_out;  ///< packed, or empty
  DataHandle frequencies;  ///< [head_dim / 2] f32, rotary models only
  DataHandle final_norm;   ///< weight, then bias, f32; or empty
  DataHandle head;         ///< packed [vocab_size, embed_size]
  DType table_dtype = DType::bf16;
  DType position_dtype = DType::bf16;

 private:
  struct Packing;
  Buffer& keep(std::size_t size_bytes);
  DataHandle register_table(TensorId id, DType* dtype);
  DataHandle register_floats(const std::vector<float>& values);
  struct Imagined;
  void load_vectors(std::int64_t layer, DataHandle* handle);

  ModelConfig config_;
  std::shared_ptr<const WeightSource> source_;
  DecoderShape shape_;
  VectorLayout vectors_;
  std::uint64_t weight_bytes_ = 0;
  std::uint64_t read_bytes_ = 0;
  std::unique_ptr<DirectFile> file_ = std::make_unique<DirectFile>();  ///< open with a disk
  std::deque<Buffer> buffers_;
  std::map<Tier, std::vector<const Buffer*>> layer_buffers_;  ///< of packed weights
  std::vector<DataHandle> resident_parts_;  ///< of tensors that are imagined and not whole
  std::vector<TensorView> tables_;          ///< keep tensors that are made in memory alive
  std::vector<LayerWeights> layers_;
};

}  // namespace sluice
