#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace sluice::tokenizers {

/// Finds the words of a list at the start of a text, byte by byte. Filled once, then read by any
/// number of threads.
class ByteTrie {
 public:
  static constexpr std::int32_t none = -1;
  static constexpr std::int32_t root = 0;

  ByteTrie();

  /// Adds a word (not empty) with a value from 0. The last value of a word counts.
  void insert(std::string_view word, std::int32_t value);

  /// The node below `node` for this byte, or none.
  std::int32_t child(std::int32_t node, char byte) const {
    const std::uint64_t key = key_of(node, byte);
    for (std::size_t slot = hash_of(key) & mask_;; slot = (slot + 1) & mask_) {
      if (edges_[slot].key == key) return edges_[slot].node;
      if (edges_[slot].key == no_edge) return none;
    }
  }
  /// The value of the word that ends at this node, or none.
  std::int32_t value(std::int32_t node) const { return values_[static_cast<std::size_t>(node)]; }

  /// Bytes of the longest word at the start of `text`; 0: there is none.
  std::size_t longest(std::string_view text) const;
  bool empty() const { return values_.size() == 1; }

 private:
  // Open addressing: an edge lies in the first free slot at or after its hash.
  struct Edge {
    std::uint64_t key;
    std::int32_t node;
  };
  static constexpr std::uint64_t no_edge = ~std::uint64_t{0};

  static std::uint64_t key_of(std::int32_t node, char byte) {
    return static_cast<std::uint64_t>(node) << 8 | static_cast<std::uint8_t>(byte);
  }
  static std::size_t hash_of(std::uint64_t key) {
    return static_cast<std::size_t>((key * 0x9E3779B97F4A7C15U) >> 20);
  }
  std::int32_t add_child(std::int32_t node, char byte);
  void grow();

  std::vector<Edge> edges_;
  std::size_t mask_;
  std::vector<std::int32_t> values_;  ///< by node
};

}  // namespace sluice::tokenizers
