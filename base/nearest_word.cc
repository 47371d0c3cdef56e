#include "base/nearest_word.h"

#include <algorithm>
#include <numeric>

namespace sluice {
namespace {

/// Words that are longer are near to none: their beginnings are compared.
std::string beginning(const std::string& word) {
  constexpr std::size_t longest = 64;
  return word.substr(0, longest);
}

std::size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substitute = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitute});
    }
  }
  return row.back();
}

}  // namespace

std::string nearest_word(const std::string& given, const std::vector<std::string>& known) {
  const std::string word = beginning(given);
  std::string nearest;
  std::size_t distance = std::max<std::size_t>(2, word.size() / 2) + 1;
  for (const std::string& candidate : known) {
    const std::size_t its = edit_distance(word, candidate);
    if (its < distance) {
      distance = its;
      nearest = candidate;
    }
  }
  return nearest;
}

std::vector<std::string> nearest_first(const std::string& given, std::vector<std::string> known) {
  const std::string word = beginning(given);
  std::stable_sort(known.begin(), known.end(), [&](const std::string& a, const std::string& b) {
    return edit_distance(word, a) < edit_distance(word, b);
  });
  return known;
}

}  // namespace sluice
