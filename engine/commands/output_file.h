#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/commands/finished_request.h"

namespace sluice {

/// One output line: {"id", "prompt", "text", "token_ids", "finish_reason"}, without a newline.
/// "prompt_token_ids" beside them where the prompt is known by these alone, "logprobs" where the
/// request asks for them, "other_outputs" where it asks for more than one.
std::string completion_line(const FinishedRequest& finished);
/// The prompt, or its tokens as JSON where there is no text.
std::string prompt_identity(const Request& request);

/// The --output file. A line is on disk as soon as its request is finished; when the run ends, by
/// itself or interrupted, the lines are put into the order of the input.
class OutputFile {
 public:
  enum class Mode : std::uint8_t {
    create,     ///< the file must not exist
    overwrite,  ///< what was there is lost when the first line is written
    resume,     ///< finished lines stay; an unfinished last line (a killed run) is dropped
  };

  /// Checks that the file can be written, and that no other run writes it. Throws Error.
  OutputFile(std::string path, Mode mode);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  /// What an earlier run has finished (resume only): id -> prompt_identity(); empty where the line
  /// does not tell.
  const std::map<std::string, std::string>& finished() const { return finished_; }
  /// Tells which place in the input a finished line of an earlier run has.
  void place_finished(const std::string& id, std::int64_t index);

  /// Appends a line; the file holds whole lines only, even when the disk is full. Throws Error.
  void add(const FinishedRequest& finished);

  /// Puts the lines into input order, atomically. Throws Error; the lines stay as they were then.
  void put_in_order();

 private:
  /// A line that the file holds. A run may write for weeks: nothing else is kept of it.
  struct Line {
    std::int64_t index = 0;  ///< place in the input
    std::int64_t begin_bytes = 0;
    std::int64_t size_bytes = 0;  ///< newline included
  };

  void read_existing();
  void append(const std::string& line);
  std::string read_line(const Line& line) const;

  std::string path_;
  Mode mode_;
  int fd_ = -1;
  bool created_ = false;
  bool any_line_ = false;
  std::int64_t size_bytes_ = 0;
  std::map<std::string, std::string> finished_;
  std::multimap<std::string, std::size_t> earlier_lines_;  ///< of an earlier run: id -> lines_
  std::vector<Line> lines_;                                ///< in file order
};

}  // namespace sluice
