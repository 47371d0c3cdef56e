#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "base/memory.h"
#include "base/numa.h"
#include "base/thread_pool.h"
#include "codelets/runtime/disk_node.h"
#include "codelets/runtime/runtime.h"
#include "codelets/runtime/shape.h"
#include "perfmodels/placement.h"

namespace sluice {

/// StarPU's memory node behind each tier, by Tier.
using TierNodes = std::array<unsigned, 4>;

/// A run's file for KV that lives on a disk; slab after slab is put there.
class KvFile {
 public:
  /// Takes `size_bytes` of `folder` for as long as it lives; the node outlives it. Throws Error
  /// when there is no room.
  KvFile(DiskNode& node, const std::filesystem::path& folder, std::uint64_t size_bytes);
  KvFile(const KvFile&) = delete;
  KvFile& operator=(const KvFile&) = delete;
  ~KvFile() = default;

  struct Slab {
    DataHandle handle;
    std::uint64_t offset = 0;  ///< in the file
  };
  Slab add(std::size_t slab_bytes);
  /// All of a slab, before any task uses it. Throws Error when the disk fails.
  void write(std::uint64_t offset, std::span<const std::byte> slab) const;

  /// Bytes of a file for `num_slabs` of them.
  static std::uint64_t size_of(std::size_t slab_bytes, std::uint64_t num_slabs);

 private:
  DiskNode& node_;
  DirectFile file_;
  std::uint64_t next_offset_ = 0;
};

/// What of the host's there is for KV besides DDR.
struct KvPlaces {
  std::vector<int> cxl_nodes;  ///< NUMA nodes that CXL memory is spread over; none: it is DDR
  std::vector<int> ddr_nodes;  ///< the same of DDR; none: as the system puts it
  /// By which KV heads lie on nodes of DDR, where they can: see KvCache::place_by_heads().
  std::vector<NodeShare> ddr_shares;
  KvFile* file = nullptr;  ///< for slabs on a disk; outlives them
};

/// The KV cache of one cohort: a slab a layer, each one StarPU handle of `num_pages`
/// pages. A slab whose home is HBM has no memory of the host's: it is made there by clear(). Which
/// page belongs to whom is the same in every layer; who has used a page and gives it to another
/// need not wait, for tasks that still read it are ordered by their slab's handle.
class KvCache {
 public:
  /// The host's memory is committed when pages are first written, or by commit(). `homes`, each
  /// layer's tier, is all DDR when empty. Throws Error when memory cannot be reserved or the homes
  /// are not one a layer.
  KvCache(const DecoderShape& shape, std::int64_t num_layers, std::int64_t num_pages,
          std::vector<Tier> homes = {}, const KvPlaces& places = {});
  /// Slabs that no kernel will look into, for simulation, each on its home's memory node.
  KvCache(const DecoderShape& shape, std::vector<Tier> homes, const TierNodes& nodes,
          std::int64_t num_pages);

  const DataHandle& slab(std::int64_t layer) const {
    return slabs_[static_cast<std::size_t>(layer)];
  }
  /// Bytes of the slabs that live in the host's memory.
  std::uint64_t host_bytes() const { return buffers_.size() * slab_bytes(); }
  /// Takes the memory of the slabs that live in the host's now, side by side on the pool's threads.
  void commit(ThreadPool& pool) const;
  /// Takes the memory of slabs in DDR now, if KvPlaces has parts for it: each part's KV heads of
  /// every page from its node, as far as that has room. The caller and the pool's threads touch it.
  /// Pages lie in turn where there are more parts than heads, where a head's part of a page is
  /// smaller than a page of the system's, and, with a line in the log, where the system refuses.
  void place_by_heads(ThreadPool& pool) const;
  /// Of the slabs that lie by heads, what lies where; empty where none does. Looks at every page
  /// of some slabs, if there are many. Throws Error when the system does not say.
  struct PartHeads : PartPages {
    std::int64_t num_heads = 0;
  };
  std::vector<PartHeads> pages_by_part() const;

  /// Fills a layer's slab: `fill` gets its bytes to write, in the host's memory. Throws Error when
  /// a disk fails.
  void fill(std::int64_t layer, const std::function<void(std::span<std::byte>)>& fill) const;
  /// Empties the slabs that live in HBM, by a task on the GPU each, and waits for these; before
  /// anything else uses the slabs.
  void clear() const;

  /// The tier that a layer's slab lives on, by the memory plan.
  Tier home(std::int64_t layer) const { return homes_[static_cast<std::size_t>(layer)]; }
  const std::vector<Tier>& homes() const { return homes_; }
  std::int64_t num_pages() const { return num_pages_; }

  /// Bytes of `num_pages` pages in all layers.
  static std::uint64_t size_bytes(const DecoderShape& shape, std::int64_t num_layers,
                                  std::int64_t num_pages);
  static std::int64_t pages_for(std::int64_t num_tokens) {
    return (num_tokens + page_tokens - 1) / page_tokens;
  }

 private:
  KvCache(const DecoderShape& shape, std::int64_t num_pages, std::vector<Tier> homes);
  void touch_by_heads(const std::vector<const Buffer*>& buffers, ThreadPool& pool) const;
  /// Of slabs in DDR.
  std::vector<const Buffer*> ddr_buffers() const;
  std::size_t slab_bytes() const {
    return shape_.page_bytes() * static_cast<std::size_t>(num_pages_);
  }

  DecoderShape shape_;
  std::int64_t num_pages_;
  std::vector<Tier> homes_;
  std::vector<Buffer> buffers_;      ///< of slabs in the host's memory
  std::vector<NodeShare> by_heads_;  ///< parts by which heads lie; empty: none do
  std::vector<int> ddr_nodes_;
  std::vector<DataHandle> slabs_;
  const KvFile* file_ = nullptr;
  std::vector<std::uint64_t> file_offsets_;  ///< by layer, where there is a file
};

}  // namespace sluice
