#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

namespace sluice {

/// Who holds which pages of a cohort's KV. A page may have several holders, and may be kept without
/// any for requests that begin alike: until somebody needs it, the one that was used longest ago
/// first. Bookkeeping only: pages are numbers, equal in all layers.
class KvPool {
 public:
  enum class Sharing : std::uint8_t { off, on };
  explicit KvPool(std::int64_t num_pages, Sharing sharing = Sharing::off);

  std::int64_t num_pages() const { return num_pages_; }
  /// That nobody holds: free ones, and those that are only kept.
  std::int64_t num_available() const {
    return static_cast<std::int64_t>(free_.size() + unused_.size());
  }

  /// Adds `count` pages to `pages`, each with one holder; false, and none, when fewer are
  /// available. The lowest free numbers come first.
  bool take(std::int64_t count, std::vector<std::int32_t>& pages);
  /// One holder fewer of each; `pages` is empty after it.
  void give_back(std::vector<std::int32_t>& pages);

  /// How many of these pages have another holder besides.
  std::int64_t num_shared(std::span<const std::int32_t> pages) const;

  /// A beginning of a prompt that pages hold: tokens up to the end of a page. Numbers are never
  /// used again, so one that is no longer there is not found.
  using Beginning = std::int64_t;
  static constexpr Beginning nothing = 0;

  /// Pages with the longest beginning of `tokens` that is there, at most `most_pages`.
  std::vector<std::int32_t> find(std::span<const std::int32_t> tokens,
                                 std::int64_t most_pages) const;
  /// One holder more of each.
  void hold(std::span<const std::int32_t> pages);
  /// `page` holds the KV of `tokens`, one page of them, behind `before`: its beginning, or the one
  /// that was there for the same tokens. Without sharing, nothing.
  Beginning keep(Beginning before, std::span<const std::int32_t> tokens, std::int32_t page);

 private:
  struct Key {
    Beginning before = nothing;
    std::vector<std::int32_t> tokens;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    std::size_t operator()(const Key& key) const;
  };
  struct Kept {
    Beginning beginning = nothing;
    std::int32_t page = 0;
  };
  struct Page {
    std::int64_t holders = 0;
    std::optional<Key> key;                    ///< where it is kept
    std::list<std::int32_t>::iterator unused;  ///< where it is kept and has no holder
  };
  Page& at(std::int32_t page) { return pages_[static_cast<std::size_t>(page)]; }
  const Page& at(std::int32_t page) const { return pages_[static_cast<std::size_t>(page)]; }
  std::int32_t take_one();

  std::int64_t num_pages_;
  Sharing sharing_;
  std::vector<Page> pages_;
  std::vector<std::int32_t> free_;
  std::list<std::int32_t> unused_;  ///< kept pages without holders, oldest use first
  std::unordered_map<Key, Kept, KeyHash> kept_;
  Beginning last_ = nothing;
};

}  // namespace sluice
