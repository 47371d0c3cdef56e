#include "engine/batching/kv_pool.h"

#include <algorithm>

#include "perfmodels/task.h"

namespace sluice {

KvPool::KvPool(std::int64_t num_pages, Sharing sharing)
    : num_pages_(num_pages), sharing_(sharing), pages_(static_cast<std::size_t>(num_pages)) {
  free_.reserve(pages_.size());
  for (std::int64_t page = num_pages; page-- > 0;) free_.push_back(static_cast<std::int32_t>(page));
}

std::size_t KvPool::KeyHash::operator()(const Key& key) const {
  auto hash = static_cast<std::uint64_t>(key.before);
  for (const std::int32_t token : key.tokens) {
    constexpr std::uint64_t odd = 0x9E3779B97F4A7C15;  // 2^64 / golden ratio
    hash = (hash ^ static_cast<std::uint32_t>(token)) * odd;
    hash ^= hash >> 32;
  }
  return hash;
}

std::int32_t KvPool::take_one() {
  if (!free_.empty()) {
    const std::int32_t page = free_.back();
    free_.pop_back();
    return page;
  }
  const std::int32_t page = unused_.front();
  unused_.pop_front();
  kept_.erase(*at(page).key);
  at(page).key.reset();
  return page;
}

bool KvPool::take(std::int64_t count, std::vector<std::int32_t>& pages) {
  if (count > num_available()) return false;
  for (; count > 0; --count) {
    pages.push_back(take_one());
    at(pages.back()).holders = 1;
  }
  return true;
}

void KvPool::give_back(std::vector<std::int32_t>& pages) {
  // The last ones first: a beginning is found only while all before it is there.
  std::reverse(pages.begin(), pages.end());
  for (const std::int32_t page : pages) {
    Page& mine = at(page);
    if (--mine.holders > 0) continue;
    if (mine.key) {
      mine.unused = unused_.insert(unused_.end(), page);
    } else {
      free_.push_back(page);
    }
  }
  pages.clear();
}

std::int64_t KvPool::num_shared(std::span<const std::int32_t> pages) const {
  return std::ranges::count_if(pages, [&](std::int32_t page) { return at(page).holders > 1; });
}

std::vector<std::int32_t> KvPool::find(std::span<const std::int32_t> tokens,
                                       std::int64_t most_pages) const {
  std::vector<std::int32_t> pages;
  Key key;
  while (std::ssize(pages) < most_pages && tokens.size() >= page_tokens) {
    key.tokens.assign(tokens.begin(), tokens.begin() + page_tokens);
    const auto found = kept_.find(key);
    if (found == kept_.end()) break;
    pages.push_back(found->second.page);
    key.before = found->second.beginning;
    tokens = tokens.subspan(page_tokens);
  }
  return pages;
}

void KvPool::hold(std::span<const std::int32_t> pages) {
  for (const std::int32_t page : pages) {
    Page& mine = at(page);
    if (mine.holders++ == 0) unused_.erase(mine.unused);
  }
}

KvPool::Beginning KvPool::keep(Beginning before, std::span<const std::int32_t> tokens,
                               std::int32_t page) {
  if (sharing_ == Sharing::off) return nothing;
  Key key{before, {tokens.begin(), tokens.end()}};
  const auto [there, added] = kept_.try_emplace(key, Kept{last_ + 1, page});
  if (!added) return there->second.beginning;
  ++last_;
  at(page).key = std::move(key);
  return last_;
}

}  // namespace sluice
