#include "base/files.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "base/error.h"

namespace sluice {
namespace {

/// Writes all parts, to the disk too, and closes.
void write_whole(int fd, const std::function<std::string()>& next_part, const std::string& path) {
  try {
    for (std::string part = next_part(); !part.empty(); part = next_part())
      write_all(fd, part, path);
    if (fsync(fd) != 0 && errno != EINVAL)
      throw Error("cannot write {}: {}", path, std::strerror(errno));
  } catch (...) {
    close(fd);
    throw;
  }
  if (close(fd) != 0) throw Error("cannot write {}: {}", path, std::strerror(errno));
}

/// All of it, or what came ahead of a signal that has a handler: who set the handler looks at what
/// it noted. poll() is interrupted even where such a signal lets read() go on.
std::string read_standard_input() {
  std::string text;
  std::array<char, 64 * 1024> piece{};
  for (;;) {
    pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
    if (poll(&input, 1, -1) < 0) return text;
    const ssize_t count = read(STDIN_FILENO, piece.data(), piece.size());
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (count < 0) throw Error("cannot read standard input: {}", std::strerror(errno));
    if (count == 0) return text;
    text.append(piece.data(), static_cast<std::size_t>(count));
  }
}

/// A new file. Its name can be foreseen: a link that somebody has put there is not followed.
int open_new(const std::string& path) {
  unlink(path.c_str());  // of a run that was killed
  return open(path.c_str(), O_WRONLY | O_CLOEXEC | O_CREAT | O_EXCL, 0666);
}

}  // namespace

std::error_code make_private_folders(const std::filesystem::path& path) {
  std::error_code error;
  if (path.empty() || std::filesystem::is_directory(path, error)) return {};
  const std::filesystem::path above = path.parent_path();
  if (above != path) {
    if (const std::error_code failed = make_private_folders(above)) return failed;
  }
  if (!path.has_filename() || mkdir(path.c_str(), 0700) == 0) return {};
  const int reason = errno;
  // Another run has made it, or it is "..".
  if (std::filesystem::is_directory(path, error)) return {};
  return {reason, std::generic_category()};
}

std::string read_file(const std::string& path) {
  if (path == "-") return read_standard_input();
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    throw Error("cannot read {}: it is a folder", path);
  }
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::string text;
  try {
    text.assign(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  } catch (const std::ios_base::failure&) {  // the library's own, of a read that fails halfway
    file.setstate(std::ios_base::badbit);
  }
  if (!file) throw Error("cannot read {}: {}", path, std::strerror(errno));
  return text;
}

FolderLock::FolderLock(const std::filesystem::path& folder)
    : fd_(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  while (fd_ >= 0 && flock(fd_, LOCK_EX) != 0 && errno == EINTR) {
  }
}

FolderLock::~FolderLock() {
  if (fd_ >= 0) close(fd_);
}

void write_all(int fd, const std::string& text, const std::string& path) {
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t count = write(fd, text.data() + done, text.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw Error("cannot write {}: {}", path, std::strerror(errno));
    done += static_cast<std::size_t>(count);
  }
}

void check_writable(const std::string& path) {
  struct stat status {};
  const bool exists = stat(path.c_str(), &status) == 0;
  if (exists && S_ISDIR(status.st_mode)) throw Error("cannot write {}: it is a folder", path);
  const bool in_place = exists && !S_ISREG(status.st_mode);
  const std::string probe = in_place ? path : fmt::format("{}.{}.tmp", path, getpid());
  const int fd = in_place ? open(probe.c_str(), O_WRONLY | O_CLOEXEC) : open_new(probe);
  if (fd < 0) throw Error("cannot write {}: {}", path, std::strerror(errno));
  close(fd);
  if (!in_place) unlink(probe.c_str());
}

void write_file(const std::string& path, const std::string& text) {
  bool is_written = false;
  write_file(path, [&] { return std::exchange(is_written, true) ? std::string() : text; });
}

void write_file(const std::string& path, const std::function<std::string()>& next_part) {
  struct stat status {};
  const bool exists = stat(path.c_str(), &status) == 0;
  const bool in_place = exists && !S_ISREG(status.st_mode);  // a device
  std::error_code problem;
  std::string file = path;  // behind a link
  if (exists && !in_place) file = std::filesystem::canonical(path, problem).string();
  if (problem) throw Error("cannot write {}: {}", path, problem.message());
  const std::string target = in_place ? path : fmt::format("{}.{}.tmp", file, getpid());
  const int fd = in_place ? open(target.c_str(), O_WRONLY | O_CLOEXEC) : open_new(target);
  if (fd < 0) throw Error("cannot write {}: {}", path, std::strerror(errno));
  try {
    if (exists && !in_place) fchmod(fd, status.st_mode & 07777);  // where there are modes
    write_whole(fd, next_part, path);
    if (!in_place && rename(target.c_str(), file.c_str()) != 0) {
      throw Error("cannot write {}: {}", path, std::strerror(errno));
    }
  } catch (...) {
    if (!in_place) unlink(target.c_str());
    throw;
  }
}

}  // namespace sluice
