#include "engine/commands/output_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"

namespace sluice {
namespace {

using nlohmann::json;

/// Whether a line that was cut off can be one of ours; see completion_line.
bool may_be_ours(std::string_view cut_line) {
  constexpr std::string_view begin = R"({"finish_reason":")";
  return cut_line.substr(0, begin.size()) == begin.substr(0, cut_line.size());
}

bool is_our_line(const json& object) {
  if (!object.is_object()) return false;
  for (const char* key : {"id", "prompt", "text", "finish_reason"}) {
    if (!object.contains(key) || !object[key].is_string()) return false;
  }
  return object.contains("token_ids") && object["token_ids"].is_array();
}

/// Whether the path still names the file that is open, which another run may have replaced.
bool names_open_file(const std::string& path, int fd) {
  struct stat named {};
  struct stat open_file {};
  return stat(path.c_str(), &named) == 0 && fstat(fd, &open_file) == 0 &&
         named.st_dev == open_file.st_dev && named.st_ino == open_file.st_ino;
}

/// JSON has no -inf; this is what the server writes.
double number_of(float logprob) {
  constexpr double least = -9999.0;
  return std::max<double>(logprob, least);
}

json logprobs_json(const std::vector<TokenLogprobs>& positions) {
  json tokens = json::array();
  json top = json::array();
  for (const TokenLogprobs& position : positions) {
    tokens.push_back(number_of(position.token.logprob));
    json& likeliest = top.emplace_back(json::object());
    for (const TokenLogprob& one : position.likeliest)
      likeliest[std::to_string(one.token)] = number_of(one.logprob);
  }
  return {{"token_logprobs", std::move(tokens)}, {"top_logprobs", std::move(top)}};
}

json output_json(const FinishedRequest::Output& output) {
  const Completion& completion = output.completion;
  json object = {{"text", completion.text},
                 {"token_ids", completion.token_ids},
                 {"finish_reason", to_string(completion.finish_reason)}};
  if (completion.request->logprobs) object["logprobs"] = logprobs_json(output.logprobs);
  return object;
}

json parsed_or_null(const std::string& line) {
  try {
    return parse_json(line, "", DuplicateKeys::last_wins);
  } catch (const Error&) {
    return {};
  }
}

}  // namespace

std::string completion_line(const FinishedRequest& finished) {
  const Request& request = finished.request();
  json line = output_json(finished.outputs.front());
  line["id"] = request.id;
  line["prompt"] = request.prompt;
  if (request.prompt.empty()) line["prompt_token_ids"] = request.prompt_tokens;
  for (std::size_t i = 1; i < finished.outputs.size(); ++i)
    line["other_outputs"].push_back(output_json(finished.outputs[i]));
  return json_text(line);
}

std::string prompt_identity(const Request& request) {
  return request.prompt.empty() ? json(request.prompt_tokens).dump() : request.prompt;
}

OutputFile::OutputFile(std::string path, Mode mode) : path_(std::move(path)), mode_(mode) {
  struct stat status {};
  const bool exists = stat(path_.c_str(), &status) == 0;
  if (exists && S_ISDIR(status.st_mode)) throw Error("cannot write {}: it is a folder", path_);
  const int exclusive = mode == Mode::create ? O_EXCL : 0;
  fd_ = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | exclusive, 0666);
  if (fd_ < 0 && errno == EEXIST) {
    throw Error("{} exists; continue it with --resume, or replace it with --overwrite", path_);
  }
  if (fd_ < 0) throw Error("cannot write {}: {}", path_, std::strerror(errno));
  if (exists && !S_ISREG(status.st_mode)) {
    close(fd_);
    throw Error("cannot write {}: it is not a regular file; choose another --output", path_);
  }
  created_ = !exists;
  if (flock(fd_, LOCK_EX | LOCK_NB) != 0 || !names_open_file(path_, fd_)) {
    close(fd_);
    throw Error("{} is being written by another run; wait for it or choose another --output",
                path_);
  }
  try {
    if (exists && mode == Mode::resume) read_existing();
  } catch (...) {
    close(fd_);
    throw;
  }
}

OutputFile::~OutputFile() {
  if (created_ && !any_line_) unlink(path_.c_str());  // nothing came of this run
  close(fd_);
}

void OutputFile::read_existing() {
  std::string text = read_file(path_);
  const std::size_t whole = text.rfind('\n') == std::string::npos ? 0 : text.rfind('\n') + 1;
  const bool tail_is_ours = may_be_ours(std::string_view(text).substr(whole));
  text.resize(whole);  // what follows the last newline was cut off
  const auto not_ours = [this](std::int64_t number) {
    return Error(
        "{}, line {}: not a line of ours; --resume continues only a file that --output wrote",
        path_, number);
  };
  std::size_t begin = 0;
  std::int64_t number = 1;
  for (; begin < text.size(); ++number) {
    const std::size_t end = text.find('\n', begin);
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    const json object = parsed_or_null(line);
    if (!is_our_line(object)) throw not_ours(number);
    finished_.emplace(object["id"].get<std::string>(), object.contains("prompt_token_ids")
                                                           ? object["prompt_token_ids"].dump()
                                                           : object["prompt"].get<std::string>());
    earlier_lines_.emplace(object["id"].get<std::string>(), lines_.size());
    lines_.push_back({.begin_bytes = static_cast<std::int64_t>(end - line.size()),
                      .size_bytes = static_cast<std::int64_t>(line.size()) + 1});
  }
  if (!tail_is_ours) throw not_ours(number);
  size_bytes_ = static_cast<std::int64_t>(whole);
  any_line_ = !lines_.empty();
}

void OutputFile::add(const FinishedRequest& finished) {
  const std::string line = completion_line(finished) + "\n";
  append(line);
  lines_.push_back({.index = finished.request().index,
                    .begin_bytes = size_bytes_ - static_cast<std::int64_t>(line.size()),
                    .size_bytes = static_cast<std::int64_t>(line.size())});
}

void OutputFile::place_finished(const std::string& id, std::int64_t index) {
  const auto [first, last] = earlier_lines_.equal_range(id);
  for (auto found = first; found != last; ++found) lines_[found->second].index = index;
}

void OutputFile::append(const std::string& line) {
  if (ftruncate(fd_, size_bytes_) != 0 || lseek(fd_, size_bytes_, SEEK_SET) < 0) {
    throw Error("cannot write {}: {}", path_, std::strerror(errno));
  }
  any_line_ = true;
  try {
    write_all(fd_, line, path_);
  } catch (const Error&) {
    if (ftruncate(fd_, size_bytes_) != 0) any_line_ = true;  // the half line stays; resume drops it
    any_line_ = !lines_.empty();
    throw;
  }
  size_bytes_ += static_cast<std::int64_t>(line.size());
}

void OutputFile::put_in_order() {
  if (mode_ == Mode::resume && ftruncate(fd_, size_bytes_) != 0) {  // a cut-off line goes
    throw Error("cannot write {}: {}", path_, std::strerror(errno));
  }
  const auto earlier = [](const Line& a, const Line& b) { return a.index < b.index; };
  if (std::is_sorted(lines_.begin(), lines_.end(), earlier)) return;
  std::vector<Line> sorted = lines_;
  std::stable_sort(sorted.begin(), sorted.end(), earlier);
  auto next = sorted.begin();
  write_file(path_, [&] { return next == sorted.end() ? std::string() : read_line(*next++); });
}

std::string OutputFile::read_line(const Line& line) const {
  std::string text(static_cast<std::size_t>(line.size_bytes), '\0');
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t count = pread(fd_, text.data() + done, text.size() - done,
                                line.begin_bytes + static_cast<std::int64_t>(done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw Error("cannot read {}: {}", path_, std::strerror(errno));
    if (count == 0) throw Error("{}: it became shorter while it was written to", path_);
    done += static_cast<std::size_t>(count);
  }
  return text;
}

}  // namespace sluice
