#pragma once

#include <cstddef>
#include <string>

namespace sluice {

/// Memory that a file is mapped to. Reading it ends in a bus error when the file has become
/// shorter, or its disk fails; the program then says which file that was, in one line, and exits
/// with 1. Output that is finished stays on disk.
class WatchedFile {
 public:
  /// Installs the handler of SIGBUS with the first one. `path` is for the message.
  WatchedFile(const void* begin, std::size_t size_bytes, const std::string& path);
  ~WatchedFile();
  WatchedFile(const WatchedFile&) = delete;
  WatchedFile& operator=(const WatchedFile&) = delete;

 private:
  int slot_ = -1;  ///< -1: too many are watched, and this one is not
};

/// While it lives, a bus error outside of watched files is this file's: the dynamic linker reads
/// it.
class LoadedFileScope {
 public:
  explicit LoadedFileScope(const std::string& path);
  ~LoadedFileScope();
  LoadedFileScope(const LoadedFileScope&) = delete;
  LoadedFileScope& operator=(const LoadedFileScope&) = delete;

 private:
  std::string message_;
};

/// Watches the memory of an object that dlopen() gave, to the end of the process.
void watch_loaded_object(void* object, const std::string& path);

}  // namespace sluice
