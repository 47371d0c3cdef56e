#include "graphs/kv_cache.h"

#include <utility>

#include "base/files.h"
#include "base/numa.h"
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
      if (home == Tier::ddr) interleave_if_allowed(buffer, places.ddr_nodes);
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
