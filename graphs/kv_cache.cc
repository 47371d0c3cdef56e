#include "graphs/kv_cache.h"

#include <utility>

namespace sluice {

KvCache::KvCache(std::int64_t num_pages, std::vector<Tier> homes)
    : num_pages_(num_pages), homes_(std::move(homes)) {
  free_pages_.reserve(static_cast<std::size_t>(num_pages));
  for (std::int64_t page = num_pages; page-- > 0;)
    free_pages_.push_back(static_cast<std::int32_t>(page));
}

KvCache::KvCache(const DecoderShape& shape, std::int64_t num_layers, std::int64_t num_pages,
                 std::vector<Tier> homes)
    : KvCache(num_pages, std::move(homes)) {
  if (homes_.empty()) homes_.assign(static_cast<std::size_t>(num_layers), Tier::ddr);
  if (homes_.size() != static_cast<std::size_t>(num_layers))
    throw Error("homes for the KV of {} layers, the model has {}", homes_.size(), num_layers);
  const std::size_t bytes = shape.page_bytes() * static_cast<std::size_t>(num_pages);
  for (std::int64_t layer = 0; layer < num_layers; ++layer) {
    const Buffer& buffer = buffers_.emplace_back(bytes);
    slabs_.push_back(DataHandle::of_memory(buffer.data(), bytes));
  }
}

KvCache::KvCache(const DecoderShape& shape, std::vector<Tier> homes, const TierNodes& nodes,
                 std::int64_t num_pages)
    : KvCache(num_pages, std::move(homes)) {
  const std::size_t bytes = shape.page_bytes() * static_cast<std::size_t>(num_pages);
  slabs_.reserve(homes_.size());
  for (const Tier home : homes_)
    slabs_.push_back(DataHandle::imagined(bytes, nodes.at(static_cast<std::size_t>(home))));
}

std::optional<std::vector<std::int32_t>> KvCache::take_pages(std::int64_t count) {
  if (count > num_free_pages()) return std::nullopt;
  std::vector<std::int32_t> pages(free_pages_.rbegin(), free_pages_.rbegin() + count);
  free_pages_.resize(free_pages_.size() - static_cast<std::size_t>(count));
  return pages;
}

void KvCache::give_back(const std::vector<std::int32_t>& pages) {
  free_pages_.insert(free_pages_.end(), pages.rbegin(), pages.rend());
}

std::uint64_t KvCache::size_bytes(const DecoderShape& shape, std::int64_t num_layers,
                                  std::int64_t num_pages) {
  return static_cast<std::uint64_t>(shape.page_bytes()) *
         static_cast<std::uint64_t>(num_layers * num_pages);
}

}  // namespace sluice
