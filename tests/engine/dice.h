#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

namespace sluice::test {

/// Draws whole numbers and chances.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : random_(seed) {}
  std::int64_t below(std::int64_t limit) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(limit));
  }
  bool percent(std::int64_t chance) { return below(100) < chance; }
  template <typename Items>
  void shuffle(Items& items) {
    std::shuffle(items.begin(), items.end(), random_);
  }

 private:
  std::mt19937_64 random_;
};

}  // namespace sluice::test
