#include "engine/console/standard_streams.h"

#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <iostream>
#include <utility>

#include "base/error.h"

namespace sluice {

void flush_stdout() {
  std::cout.flush();
  if (!std::cout) throw Error("cannot write to standard output: {}", std::strerror(errno));
}

std::optional<std::string> InputLines::take_line() {
  const std::size_t end = read_.find('\n');
  if (end == std::string::npos && (!at_end_ || read_.empty())) return std::nullopt;
  std::string line = read_.substr(0, end);
  read_.erase(0, end == std::string::npos ? end : end + 1);
  if (!line.empty() && line.back() == '\r') line.pop_back();
  return line;
}

bool InputLines::read_more() {
  std::array<char, 4096> piece{};
  const ssize_t count = read(file_, piece.data(), piece.size());
  if (count < 0 && errno == EINTR) return true;
  if (count < 0) throw Error("cannot read standard input: {}", std::strerror(errno));
  read_.append(piece.data(), static_cast<std::size_t>(count));
  return count > 0;
}

std::optional<std::string> InputLines::next(const std::atomic<bool>& interrupt) {
  constexpr int look_after_ms = 100;  // at the flag, should the signal come ahead of poll()
  while (!interrupt) {
    if (std::optional<std::string> line = take_line()) return line;
    if (at_end_) return std::nullopt;
    pollfd waiting{.fd = file_, .events = POLLIN, .revents = 0};
    if (poll(&waiting, 1, look_after_ms) > 0) at_end_ = !read_more();
  }
  return std::nullopt;
}

}  // namespace sluice
