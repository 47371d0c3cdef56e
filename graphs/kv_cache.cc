#include "graphs/kv_cache.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/files.h"
#include "base/log.h"
#include "base/rounding.h"
#include "codelets/kv_store/kv_store.h"

namespace sluice {

KvCache::KvCache(const DecoderShape& shape, std::int64_t num_pages, std::vector<Tier> homes)
    : shape_(shape), num_pages_(num_pages), homes_(std::move(homes)) {
  slabs_.reserve(homes_.size());
}

KvFile::KvFile(DiskNode& node, const std::filesystem::path& folder, std::uint64_t size_bytes)
    : node_(node) {
  make_private_folders(folder);  // what fails here fails below
  try {
    file_ = DirectFile::temporary(folder, size_bytes);
  } catch (const Error& error) {
    throw Error("--disk {}; KV takes {:.1f} MB there; choose another folder, or less to generate",
                error.what(), static_cast<double>(size_bytes) * 1e-6);
  }
}

KvFile::Slab KvFile::add(std::size_t slab_bytes) {
  Slab slab{node_.data(file_, next_offset_, slab_bytes), next_offset_};
  next_offset_ += DirectFile::aligned(slab_bytes);
  return slab;
}

void KvFile::write(std::uint64_t offset, std::span<const std::byte> slab) const {
  file_.write(offset, slab.size(), slab.data());
}

std::uint64_t KvFile::size_of(std::size_t slab_bytes, std::uint64_t num_slabs) {
  return DirectFile::aligned(slab_bytes) * num_slabs;
}

KvCache::KvCache(const DecoderShape& shape, std::int64_t num_layers, std::int64_t num_pages,
                 std::vector<Tier> homes, const KvPlaces& places)
    : KvCache(shape, num_pages,
              homes.empty() ? std::vector<Tier>(static_cast<std::size_t>(num_layers), Tier::ddr)
                            : std::move(homes)) {
  if (homes_.size() != static_cast<std::size_t>(num_layers))
    throw Error("homes for the KV of {} layers, the model has {}", homes_.size(), num_layers);
  file_ = places.file;
  ddr_nodes_ = places.ddr_nodes;
  const auto num_parts = std::ssize(places.ddr_shares);
  const std::size_t head_bytes =
      shape_.page_bytes() / static_cast<std::size_t>(shape_.num_kv_heads);
  if (num_parts > 1 && num_parts <= shape_.num_kv_heads &&
      head_bytes >= static_cast<std::size_t>(sysconf(_SC_PAGESIZE)))
    by_heads_ = places.ddr_shares;
  buffers_.reserve(homes_.size());
  file_offsets_.resize(homes_.size());
  for (const Tier home : homes_) {
    if (home == Tier::hbm) {
      slabs_.push_back(DataHandle::temporary(slab_bytes()));
    } else if (home == Tier::disk) {
      if (file_ == nullptr) throw Error("KV is to live on a disk, and there is none");
      KvFile::Slab slab = places.file->add(slab_bytes());
      file_offsets_[slabs_.size()] = slab.offset;
      slabs_.push_back(std::move(slab.handle));
    } else {
      const Buffer& buffer = buffers_.emplace_back(slab_bytes());
      if (home == Tier::cxl && !places.cxl_nodes.empty()) interleave(buffer, places.cxl_nodes);
      if (home == Tier::ddr && by_heads_.empty()) interleave_if_allowed(buffer, ddr_nodes_);
      slabs_.push_back(home == Tier::cxl
                           ? DataHandle::of_cxl_memory(buffer.data(), slab_bytes(), CxlData::kv)
                           : DataHandle::of_memory(buffer.data(), slab_bytes()));
    }
  }
}

KvCache::KvCache(const DecoderShape& shape, std::vector<Tier> homes, const TierNodes& nodes,
                 std::int64_t num_pages)
    : KvCache(shape, num_pages, std::move(homes)) {
  for (const Tier home : homes_) {
    slabs_.push_back(DataHandle::imagined(slab_bytes(), nodes.at(static_cast<std::size_t>(home))));
  }
}

void KvCache::commit(ThreadPool& pool) const {
  pool.run(static_cast<std::int64_t>(buffers_.size()),
           [&](std::int64_t i) { buffers_[static_cast<std::size_t>(i)].commit(); });
}

namespace {

/// Where the parts' heads begin in a page, in bytes, and where the last one's end.
std::vector<std::uint64_t> part_offsets(const DecoderShape& shape,
                                        const std::vector<NodeShare>& parts) {
  std::vector<std::uint64_t> offsets;
  for (const std::uint64_t head :
       first_pages(static_cast<std::uint64_t>(shape.num_kv_heads), parts))
    offsets.push_back(static_cast<std::uint64_t>(shape.k_offset(static_cast<std::int64_t>(head))) *
                      size_bytes(shape.dtype));
  return offsets;
}

}  // namespace

std::vector<const Buffer*> KvCache::ddr_buffers() const {
  std::vector<const Buffer*> found;
  auto buffer = buffers_.begin();
  for (const Tier home : homes_) {
    if (home == Tier::ddr) found.push_back(&*buffer);
    if (home == Tier::ddr || home == Tier::cxl) ++buffer;
  }
  return found;
}

void KvCache::place_by_heads(ThreadPool& pool) const {
  if (by_heads_.empty()) return;
  const std::vector<const Buffer*> buffers = ddr_buffers();
  try {
    for (const NodeShare& part : by_heads_) const PreferredNode allowed(part.node);
    for (const Buffer* buffer : buffers) use_small_pages(*buffer);
    touch_by_heads(buffers, pool);
  } catch (const Error& error) {
    logger().info("{}; KV lies on all nodes in turn", error.what());
  }
  // What is bound stays where it is: other pages the kernel moves to who reads them (NUMA
  // balancing).
  for (const Buffer* buffer : buffers) interleave_if_allowed(*buffer, ddr_nodes_);
}

void KvCache::touch_by_heads(const std::vector<const Buffer*>& buffers, ThreadPool& pool) const {
  const std::vector<std::uint64_t> offsets = part_offsets(shape_, by_heads_);
  constexpr std::int64_t pages_of_a_job = 64;
  const std::int64_t jobs_of_a_slab = divide_up(num_pages_, pages_of_a_job);
  pool.run(std::ssize(buffers) * jobs_of_a_slab, [&](std::int64_t job) {
    const Buffer& buffer = *buffers[static_cast<std::size_t>(job / jobs_of_a_slab)];
    const std::int64_t first = job % jobs_of_a_slab * pages_of_a_job;
    const std::int64_t end = std::min(num_pages_, first + pages_of_a_job);
    for (std::size_t part = 0; part < by_heads_.size(); ++part) {
      const PreferredNode preferred(by_heads_[part].node);
      for (std::int64_t page = first; page < end; ++page) {
        const std::uint64_t begin = static_cast<std::uint64_t>(page) * shape_.page_bytes();
        touch_new_pages(buffer, begin + offsets[part], begin + offsets[part + 1]);
      }
    }
  });
}

std::vector<KvCache::PartHeads> KvCache::pages_by_part() const {
  const std::vector<const Buffer*> buffers = ddr_buffers();
  if (by_heads_.empty() || buffers.empty()) return {};
  constexpr std::uint64_t most = std::uint64_t{1} << 18;
  const auto page_bytes = static_cast<std::int64_t>(sysconf(_SC_PAGESIZE));
  const std::vector<std::uint64_t> offsets = part_offsets(shape_, by_heads_);
  const std::vector<std::uint64_t> heads =
      first_pages(static_cast<std::uint64_t>(shape_.num_kv_heads), by_heads_);
  std::vector<PartHeads> parts;
  for (std::size_t part = 0; part < by_heads_.size(); ++part)
    parts.push_back(
        {{.part = by_heads_[part]}, static_cast<std::int64_t>(heads[part + 1] - heads[part])});
  std::uint64_t asked = 0;
  for (const Buffer* buffer : buffers) {
    for (std::int64_t page = 0; page < num_pages_ && asked < most; ++page) {
      const std::uint64_t begin = static_cast<std::uint64_t>(page) * shape_.page_bytes();
      const auto first_of = [&](std::size_t part) {
        return static_cast<std::uint64_t>(
            divide_up(static_cast<std::int64_t>(begin + offsets[part]), page_bytes));
      };
      for (std::size_t part = 0; part < parts.size(); ++part) {
        const std::uint64_t count = first_of(part + 1) - first_of(part);
        asked += count;
        parts[part].asked += count;
        for (const auto& [node, found] :
             pages_by_node(*buffer, 1, first_of(part), first_of(part + 1))) {
          if (node == parts[part].part.node) parts[part].found += found;
        }
      }
    }
  }
  return parts;
}

void KvCache::fill(std::int64_t layer,
                   const std::function<void(std::span<std::byte>)>& fill) const {
  if (home(layer) != Tier::disk) {
    const WriteAccess access(slab(layer));
    return fill(access.bytes());
  }
  const Buffer buffer(slab_bytes());
  fill({buffer.data(), buffer.size()});
  file_->write(file_offsets_[static_cast<std::size_t>(layer)], {buffer.data(), buffer.size()});
}

void KvCache::clear() const {
  for (std::size_t layer = 0; layer < slabs_.size(); ++layer) {
    if (homes_[layer] != Tier::hbm) continue;
    KvClearArgs args;
    args.slab_bytes = slab_bytes();
    args.tag.layer = static_cast<std::int32_t>(layer);
    args.tag.sublayer = args.tag.last_sublayer = Sublayer::kv_store;
    args.tag.device = Device::gpu;
    submit_kv_clear(args, slabs_[layer], shape_.dtype);
  }
  wait_for_all_tasks();
}

std::uint64_t KvCache::size_bytes(const DecoderShape& shape, std::int64_t num_layers,
                                  std::int64_t num_pages) {
  return static_cast<std::uint64_t>(shape.page_bytes()) *
         static_cast<std::uint64_t>(num_layers * num_pages);
}

}  // namespace sluice
