#include "engine/serve/api_keys.h"

#include <algorithm>

#include "base/error.h"
#include "base/files.h"

namespace sluice {
namespace {

constexpr std::size_t longest_key = 4096;

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

std::string_view trimmed(std::string_view line) {
  while (!line.empty() && is_blank(line.back())) line.remove_suffix(1);
  while (!line.empty() && is_blank(line.front())) line.remove_prefix(1);
  return line;
}

/// Compares all of `key`, whatever `shown` is.
bool equals(std::string_view key, std::string_view shown) {
  unsigned difference = key.size() == shown.size() ? 0 : 1;
  for (std::size_t i = 0; i < key.size(); ++i) {
    const char other = i < shown.size() ? shown[i] : '\0';
    difference |= static_cast<unsigned char>(key[i] ^ other);
  }
  return difference == 0;
}

void check(std::string_view key, const std::string& path, std::size_t line) {
  const bool is_visible =
      std::all_of(key.begin(), key.end(), [](char c) { return c > ' ' && c < 0x7f; });
  if (!is_visible || key.size() > longest_key)
    throw Error("{}, line {}: expected a key of at most {} visible ASCII characters", path, line,
                longest_key);
}

}  // namespace

ApiKeys ApiKeys::read(const std::string& path) {
  const std::string text = read_file(path);
  ApiKeys keys;
  std::string_view rest = text;
  for (std::size_t number = 1; !rest.empty(); ++number) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = trimmed(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (line.empty() || line.front() == '#') continue;
    check(line, path, number);
    keys.keys_.emplace_back(line);
  }
  if (keys.keys_.empty()) throw Error("{}: no API key in it; write one a line", path);
  return keys;
}

bool ApiKeys::lets_in(std::string_view authorization) const {
  if (keys_.empty()) return true;
  constexpr std::string_view scheme = "Bearer ";
  if (!authorization.starts_with(scheme)) return false;
  const std::string_view shown = authorization.substr(scheme.size());
  bool found = false;
  for (const std::string& key : keys_) found = equals(key, shown) || found;
  return found;
}

}  // namespace sluice
