#include "engine/requests/text_output.h"

#include <algorithm>

namespace sluice {
namespace {

std::size_t find_first(std::string_view text, std::span<const std::string> stop) {
  std::size_t first = std::string::npos;
  for (const std::string& one : stop) first = std::min(first, text.find(one));
  return first;
}

/// Length of the longest end of `text` with which some stop text begins, and does not end.
std::size_t open_end(std::string_view text, std::span<const std::string> stop) {
  std::size_t longest = 0;
  for (const std::string_view one : stop) {
    for (std::size_t n = std::min(one.size() - 1, text.size()); n > longest; --n) {
      if (text.ends_with(one.substr(0, n))) longest = n;
    }
  }
  return longest;
}

}  // namespace

void TextOutput::Pending::add(std::string_view more, bool is_hidden) {
  text += more;
  hidden.resize(text.size(), is_hidden);
}

std::string TextOutput::Pending::visible() const {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (!hidden[i]) result += text[i];
  }
  return result;
}

std::size_t TextOutput::Pending::place_of_visible(std::size_t count) const {
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (!hidden[i] && count-- == 0) return i;
  }
  return text.size();
}

std::string TextOutput::Pending::take(std::size_t end) {
  std::string taken;
  for (std::size_t i = 0; i < end; ++i) {
    if (!hidden[i]) taken += text[i];
  }
  text.erase(0, end);
  hidden.erase(hidden.begin(), hidden.begin() + static_cast<std::ptrdiff_t>(end));
  return taken;
}

TextOutput::TextOutput(const Tokenizer& tokenizer, std::span<const std::string> stop)
    : tokenizer_(tokenizer), stop_(stop) {}

std::string TextOutput::add(std::int32_t token) {
  if (stopped_) return "";
  if (!stop_.empty()) pending_.add(tokenizer_.special_text(token), true);
  pending_.add(utf8_.feed(tokenizer_.token_bytes(token)), false);
  if (const std::size_t stop = find_stop(); stop != std::string::npos) {
    stopped_ = true;
    std::string released = release(stop);
    pending_ = {};
    return released;
  }
  return release(begin_of_held_back());
}

std::string TextOutput::finish() {
  if (stopped_) return "";
  pending_.add(utf8_.finish(), false);
  return release(pending_.text.size());
}

std::string TextOutput::release(std::size_t end) {
  std::string released = pending_.take(end);
  text_ += released;
  return released;
}

// A reader sees the text without special tokens, the model wrote it with them: both count.
std::size_t TextOutput::find_stop() const {
  const std::size_t stop = find_first(pending_.text, stop_);
  const std::string visible = pending_.visible();
  if (visible.size() == pending_.text.size()) return stop;
  const std::size_t seen = find_first(visible, stop_);
  return seen == std::string::npos ? stop : std::min(stop, pending_.place_of_visible(seen));
}

std::size_t TextOutput::begin_of_held_back() const {
  const std::size_t written = pending_.text.size() - open_end(pending_.text, stop_);
  const std::string visible = pending_.visible();
  if (visible.size() == pending_.text.size()) return written;
  const std::size_t seen = visible.size() - open_end(visible, stop_);
  return std::min(written, pending_.place_of_visible(seen));
}

}  // namespace sluice
