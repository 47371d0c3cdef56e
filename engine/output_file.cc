#include "engine/output_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "engine/prompts.h"

namespace sluice {
namespace {

using nlohmann::json;

void write_all(int fd, const std::string& text, const std::string& path) {
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t count = write(fd, text.data() + done, text.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw Error("cannot write {}: {}", path, std::strerror(errno));
    done += static_cast<std::size_t>(count);
  }
}

}  // namespace

std::string completion_line(const Completion& completion) {
  json line;
  line["id"] = completion.request.id;
  line["prompt"] = completion.request.prompt;
  line["text"] = completion.text;
  line["token_ids"] = completion.token_ids;
  line["finish_reason"] = to_string(completion.finish_reason);
  return line.dump();
}

OutputFile::OutputFile(std::string path, Mode mode) : path_(std::move(path)), mode_(mode) {
  struct stat status {};
  const bool exists = stat(path_.c_str(), &status) == 0;
  if (exists && S_ISDIR(status.st_mode)) throw Error("cannot write {}: it is a folder", path_);
  if (exists && mode == Mode::create) {
    throw Error("{} exists; continue it with --resume, or replace it with --overwrite", path_);
  }
  fd_ = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd_ < 0) throw Error("cannot write {}: {}", path_, std::strerror(errno));
  created_ = !exists;
  if (flock(fd_, LOCK_EX | LOCK_NB) != 0) {
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
  text.resize(whole);  // what follows the last newline was cut off
  std::size_t begin = 0;
  for (std::int64_t number = 1; begin < text.size(); ++number) {
    const std::size_t end = text.find('\n', begin);
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    const json object = json::parse(line, nullptr, false);
    if (!object.is_object() || !object.contains("id") || !object["id"].is_string() ||
        !object.contains("prompt") || !object["prompt"].is_string()) {
      throw Error(
          "{}, line {}: not a line of ours; --resume continues only a file that --output wrote",
          path_, number);
    }
    finished_.emplace(object["id"].get<std::string>(), object["prompt"].get<std::string>());
    lines_.emplace_back(object["id"].get<std::string>(), line);
  }
  size_bytes_ = static_cast<std::int64_t>(whole);
  any_line_ = !lines_.empty();
}

void OutputFile::add(const Completion& completion) {
  const std::string line = completion_line(completion);
  append(line + "\n");
  index_of_[completion.request.id] = completion.request.index;
  lines_.emplace_back(completion.request.id, line);
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
  const auto earlier = [this](const auto& a, const auto& b) {
    return index_of_[a.first] < index_of_[b.first];
  };
  if (std::is_sorted(lines_.begin(), lines_.end(), earlier)) return;
  std::stable_sort(lines_.begin(), lines_.end(), earlier);
  std::string text;
  for (const auto& [id, line] : lines_) text += line + "\n";
  write_file(path_, text);
}

void write_file(const std::string& path, const std::string& text) {
  const std::string temporary = fmt::format("{}.{}.tmp", path, getpid());
  const int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0) throw Error("cannot write {}: {}", path, std::strerror(errno));
  try {
    write_all(fd, text, path);
    if (fsync(fd) != 0 && errno != EINVAL)
      throw Error("cannot write {}: {}", path, std::strerror(errno));
    close(fd);
    if (rename(temporary.c_str(), path.c_str()) != 0) {
      throw Error("cannot write {}: {}", path, std::strerror(errno));
    }
  } catch (...) {
    close(fd);
    unlink(temporary.c_str());
    throw;
  }
}

}  // namespace sluice
