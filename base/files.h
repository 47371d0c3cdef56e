#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <system_error>

namespace sluice {

/// Reads a whole file ("-": standard input). Throws Error.
std::string read_file(const std::string& path);

/// Tries what write_file will do, while nothing is lost yet. Throws Error.
void check_writable(const std::string& path);

/// Writes a small file as a whole: to a temporary beside it, then renamed. Throws Error.
void write_file(const std::string& path, const std::string& text);
/// The same with a text that comes in parts, until one is empty.
void write_file(const std::string& path, const std::function<std::string()>& next_part);

/// Makes a folder, and those above it that are missing, for this user only (0700), whatever the
/// umask. What is there already stays as it is.
std::error_code make_private_folders(const std::filesystem::path& path);

/// While it lives, no other process has a lock of this folder: what reads a file there and writes
/// it again goes by what is there. Where the file system knows no locks, it holds nothing.
class FolderLock {
 public:
  explicit FolderLock(const std::filesystem::path& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int fd_ = -1;
};

/// Writes all of `text`; `path` is what errors name. Throws Error.
void write_all(int fd, const std::string& text, const std::string& path);

}  // namespace sluice
