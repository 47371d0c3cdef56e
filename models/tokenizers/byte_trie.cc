#include "models/tokenizers/byte_trie.h"

#include <utility>

namespace sluice::tokenizers {
namespace {

constexpr std::size_t first_capacity = 64;  // a power of two

}  // namespace

ByteTrie::ByteTrie()
    : edges_(first_capacity, Edge{no_edge, none}), mask_(first_capacity - 1), values_{none} {}

void ByteTrie::insert(std::string_view word, std::int32_t value) {
  std::int32_t node = root;
  for (const char byte : word) {
    const std::int32_t next = child(node, byte);
    node = next == none ? add_child(node, byte) : next;
  }
  values_[static_cast<std::size_t>(node)] = value;
}

std::size_t ByteTrie::longest(std::string_view text) const {
  std::size_t best = 0;
  std::int32_t node = root;
  for (std::size_t i = 0; i < text.size(); ++i) {
    node = child(node, text[i]);
    if (node == none) break;
    if (value(node) != none) best = i + 1;
  }
  return best;
}

std::int32_t ByteTrie::add_child(std::int32_t node, char byte) {
  const auto next = static_cast<std::int32_t>(values_.size());
  values_.push_back(none);
  if (2 * values_.size() > edges_.size()) grow();
  const std::uint64_t key = key_of(node, byte);
  std::size_t slot = hash_of(key) & mask_;
  while (edges_[slot].key != no_edge) slot = (slot + 1) & mask_;
  edges_[slot] = {key, next};
  return next;
}

void ByteTrie::grow() {
  const std::vector<Edge> old = std::exchange(edges_, {});
  edges_.resize(2 * old.size(), Edge{no_edge, none});
  mask_ = edges_.size() - 1;
  for (const Edge& edge : old) {
    if (edge.key == no_edge) continue;
    std::size_t slot = hash_of(edge.key) & mask_;
    while (edges_[slot].key != no_edge) slot = (slot + 1) & mask_;
    edges_[slot] = edge;
  }
}

}  // namespace sluice::tokenizers
