#pragma once

#include <atomic>
#include <optional>
#include <string>

namespace sluice {

/// What was written so far is there for its reader. Throws Error.
void flush_stdout();

/// Lines of a file that somebody may be typing.
class InputLines {
 public:
  /// The file is open, and stays so.
  explicit InputLines(int file) : file_(file) {}

  /// The next line without its end; nothing when there is no more, or soon after `interrupt` is
  /// set. Throws Error.
  std::optional<std::string> next(const std::atomic<bool>& interrupt);

 private:
  std::optional<std::string> take_line();
  /// False: there is no more.
  bool read_more();

  int file_;
  std::string read_;
  bool at_end_ = false;
};

}  // namespace sluice
