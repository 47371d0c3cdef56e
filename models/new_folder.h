#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/weights.h"

namespace sluice {

/// A tensor of a safetensors file that is to be written.
struct NewTensor {
  TensorId id;
  std::string name;
  std::string dtype;  ///< as the header has it: "BF16", "I32"...
  std::vector<std::int64_t> shape;
  std::uint64_t bytes = 0;
  std::uint64_t position = 0;  ///< in the file's data
  /// Of a tensor of all experts, what it has of each (see StackedPart): those of expert 0.
  std::vector<TensorId> stacked = {};
};

/// A safetensors file that is to be written.
struct NewShard {
  std::vector<NewTensor> tensors;
  std::uint64_t bytes = 0;

  /// Gives each tensor its position; those of wider types come first, so that all are aligned.
  void lay_out();
};

std::string_view safetensors_name(DType dtype);
/// "model-00001-of-00002.safetensors".
std::string shard_name(std::size_t index, std::size_t count);
/// Length and JSON, padded so that the data is aligned to 8 bytes.
std::string safetensors_header(const NewShard& shard);
std::string index_json(const std::vector<NewShard>& shards);
std::uint64_t total_bytes(const std::vector<NewShard>& shards);

/// A file being written; every failure throws Error with the system's reason.
class NewFile {
 public:
  explicit NewFile(const std::filesystem::path& path);
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  /// At a place of its own, whatever write() does. Safe to call from several threads.
  void write_at(std::uint64_t offset, std::span<const std::byte> bytes) const;
  void close();

 private:
  [[noreturn]] void fail(int error) const;

  std::string path_;
  int descriptor_;
};

void write_text(const std::filesystem::path& path, std::string_view text);

/// The folder to write, which does not exist or is empty. Throws Error.
std::filesystem::path checked_target(const std::string& out_dir);
/// Throws Error when its disk has too little space; `advice` is what to do about it.
void check_space(const std::filesystem::path& target, std::uint64_t bytes, std::string_view advice);

/// A folder beside the target that takes the target's name once all is written, and goes otherwise.
class FolderInProgress {
 public:
  explicit FolderInProgress(std::filesystem::path target);
  ~FolderInProgress();
  FolderInProgress(const FolderInProgress&) = delete;
  FolderInProgress& operator=(const FolderInProgress&) = delete;

  const std::filesystem::path& path() const { return path_; }
  void commit();

 private:
  std::filesystem::path target_;
  std::filesystem::path path_;
};

}  // namespace sluice
