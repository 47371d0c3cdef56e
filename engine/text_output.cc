#include "engine/text_output.h"

#include <algorithm>

namespace sluice {

TextOutput::TextOutput(const Tokenizer& tokenizer, std::vector<std::string> stop)
    : tokenizer_(tokenizer), stop_(std::move(stop)) {
  std::erase(stop_, "");
}

std::string TextOutput::add(std::int32_t token) {
  if (stopped_) return "";
  pending_ += utf8_.feed(tokenizer_.token_bytes(token));
  std::size_t end = std::string::npos;
  for (const std::string& stop : stop_) end = std::min(end, pending_.find(stop));
  if (end != std::string::npos) {
    stopped_ = true;
    std::string released = release(end);
    pending_.clear();
    return released;
  }
  return release(pending_.size() - held_back());
}

std::string TextOutput::finish() {
  if (stopped_) return "";
  pending_ += utf8_.finish();
  return release(pending_.size());
}

std::string TextOutput::release(std::size_t count) {
  std::string released = pending_.substr(0, count);
  pending_.erase(0, count);
  text_ += released;
  return released;
}

/// Length of the longest end of the pending text with which some stop text begins.
std::size_t TextOutput::held_back() const {
  std::size_t longest = 0;
  for (const std::string& stop : stop_) {
    for (std::size_t n = std::min(stop.size() - 1, pending_.size()); n > longest; --n) {
      if (pending_.ends_with(std::string_view(stop).substr(0, n))) longest = n;
    }
  }
  return longest;
}

}  // namespace sluice
