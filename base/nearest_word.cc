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

bool is_digit(char letter) { return letter >= '0' && letter <= '9'; }

/// The number that begins at `at`, which is left behind it.
std::size_t read_number(const std::string& word, std::size_t& at) {
  std::size_t number = 0;
  for (; at < word.size() && is_digit(word[at]); ++at)
    number = number * 10 + static_cast<std::size_t>(word[at] - '0');
  return number;
}

/// As in a dictionary, and numbers by their size: opt-6.7b before opt-13b.
bool comes_before(const std::string& a, const std::string& b) {
  std::size_t i = 0;
  std::size_t j = 0;
  while (i < a.size() && j < b.size()) {
    if (is_digit(a[i]) && is_digit(b[j])) {
      const std::size_t left = read_number(a, i);
      const std::size_t right = read_number(b, j);
      if (left != right) return left < right;
    } else {
      if (a[i] != b[j]) return a[i] < b[j];
      ++i;
      ++j;
    }
  }
  if (i < a.size() || j < b.size()) return j < b.size();
  return a < b;  // 7 and 07
}

std::string letters_of(const std::string& word) {
  std::string letters;
  for (const char c : word) {
    if (c != '-' && c != '_')
      letters += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  return letters;
}

/// Words of fewer letters are near to too many others.
std::size_t most_wrong_letters(const std::string& known) {
  constexpr std::size_t shortest = 4;
  constexpr std::size_t long_one = 8;
  if (known.size() < shortest) return 0;
  return known.size() < long_one ? 1 : 2;
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

std::string mistyped_word(const std::string& given, const std::vector<std::string>& known) {
  const std::string letters = letters_of(beginning(given));
  for (const std::string& candidate : known) {
    const std::string its = letters_of(candidate);
    if (letters == its || edit_distance(letters, its) <= most_wrong_letters(its)) return candidate;
  }
  return {};
}

std::vector<std::string> nearest_first(const std::string& given, std::vector<std::string> known) {
  std::sort(known.begin(), known.end(), comes_before);
  const auto nearest = std::find(known.begin(), known.end(), nearest_word(given, known));
  if (nearest != known.end()) std::rotate(known.begin(), nearest, nearest + 1);
  return known;
}

}  // namespace sluice
