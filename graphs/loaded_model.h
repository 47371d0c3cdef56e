#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <vector>

#include "base/memory.h"
#include "base/numa.h"
#include "codelets/runtime/disk_node.h"
#include "graphs/model_weights.h"
#include "models/model.h"
#include "perfmodels/placement.h"

namespace sluice {

class WeightFile;

/// Where packed weights live. Norms, biases and tables are always in DDR.
struct WeightHomes {
  std::vector<Tier> layers;                    ///< ddr, cxl or disk; none: all in DDR
  bool head_on_disk = false;                   ///< the LM head; else in DDR
  std::size_t chunk_bytes = most_chunk_bytes;  ///< of a layer's experts, see ExpertChunks
  HotExpertLists hot_experts;  ///< which come first; their home is here all the same, as HBM's is
  std::vector<int> cxl_nodes;  ///< NUMA nodes that CXL memory is spread over; none: it is DDR
  std::vector<int> ddr_nodes;  ///< the same of DDR; none: as the system puts it
  /// Of each weight in DDR the columns that a node has, one group of cores after the other; none:
  /// on `ddr_nodes` in turn. Experts, of which each token takes a few, always are.
  std::vector<NodeShare> ddr_shares;
  WeightFile* file = nullptr;  ///< with a disk: all weights, in it or to be written there
  DiskNode* node = nullptr;    ///< with a disk

  Tier of_layer(std::int64_t layer) const {
    return layers.empty() ? Tier::ddr : layers.at(static_cast<std::size_t>(layer));
  }
};

/// What lies behind a loaded model's handles, and outlives them.
struct WeightMemory {
  std::shared_ptr<const WeightSource> source;
  std::unique_ptr<DirectFile> file = std::make_unique<DirectFile>();  ///< open with a disk
  std::deque<Buffer> buffers;
  std::vector<TensorView> tables;  ///< keep tensors that are made in memory alive
};

/// A model's weights, packed for the CPU, one copy, each a StarPU handle. Embedding rows are read
/// where the checkpoint lies.
class LoadedModel : private WeightMemory, public ModelWeights {
 public:
  /// Called from the loading thread with bytes packed so far and in all.
  using Progress = std::function<void(std::uint64_t done_bytes, std::uint64_t total_bytes)>;

  /// Packs in parallel on `pool`. Throws Error on a weight that is NaN or infinite, with its name
  /// and place. With a disk, packs into its file first if that is not whole, one layer at a time,
  /// publishes it, and keeps in memory only what does not live there; from a file that is whole it
  /// reads that.
  LoadedModel(const Model& model, DType dtype, ThreadPool& pool, const Progress& progress = {},
              const WeightHomes& homes = {});

  /// Of the weights, what came ready packed out of the disk's file.
  std::uint64_t read_bytes() const { return read_bytes_; }
  /// Where the layers' packed weights are that live in a tier of the host's memory: all pages of
  /// small models; of large ones a sample of a million. Throws Error when the system does not say.
  struct Pages {
    std::uint64_t asked = 0;               ///< pages that were looked at
    std::uint64_t every = 1;               ///< one in so many was
    std::map<int, std::uint64_t> by_node;  ///< those in use, by NUMA node
  };
  Pages layer_pages(Tier tier) const;
  /// Of all weights that were bound to the nodes of WeightHomes::ddr_shares, what lies in the part
  /// of each. Nothing where the system refused. Throws as layer_pages() does.
  std::vector<PartPages> pages_by_part() const;

  /// Moves the weights in DDR that are cut by columns to where such WeightHomes::ddr_shares have
  /// them, while no task runs. Throws Error where the system refuses.
  void move_parts(const std::vector<NodeShare>& parts);

 private:
  struct Packing;
  Buffer& keep(std::size_t size_bytes);
  DataHandle register_table(TensorId id, DType* dtype);
  DataHandle register_floats(const std::vector<float>& values);
  /// A table of the layers, which counts as no weight.
  DataHandle register_numbers(const std::vector<std::int32_t>& values);
  void load_vectors(std::int64_t layer, DataHandle* handle);

  std::uint64_t read_bytes_ = 0;
  std::map<Tier, std::vector<const Buffer*>> layer_buffers_;  ///< of packed weights
  std::vector<const Buffer*> by_columns_;                     ///< of weights in DDR
  std::vector<NodeShare> parts_;                              ///< of each of them; none: in turn
  std::vector<int> ddr_nodes_;
};

}  // namespace sluice
