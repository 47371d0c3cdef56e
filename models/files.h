#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace sluice {

/// Read-only bytes of a file: mapped from disk, or embedded in the program.
class FileBytes {
 public:
  FileBytes(std::string path, std::span<const std::byte> bytes, std::shared_ptr<const void> owner)
      : path_(std::move(path)), bytes_(bytes), owner_(std::move(owner)) {}
  const std::string& path() const { return path_; }
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::string path_;
  std::span<const std::byte> bytes_;
  std::shared_ptr<const void> owner_;  ///< keeps the mapping
};

/// A model's folder: on disk, or embedded ("tiny").
class ModelFiles {
 public:
  ModelFiles() = default;
  /// Throws Error when there is no such folder (or embedded model) or it cannot be read.
  static ModelFiles open(const std::string& path_or_name);

  /// Path of a file in the folder as a user would name it ("tiny:config.json" for embedded ones).
  std::string path(const std::string& file) const;
  bool contains(const std::string& file) const;
  /// The file's bytes; nothing if there is no such file. Throws Error when it cannot be read, and
  /// for a Git LFS pointer.
  std::optional<FileBytes> map(const std::string& file) const;
  /// The same as text.
  std::optional<std::string> read(const std::string& file) const;
  const std::string& root() const { return root_; }

 private:
  std::string root_;
  bool embedded_ = false;
};

}  // namespace sluice
