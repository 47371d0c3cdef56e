#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "base/direct_file.h"
#include "base/dtype.h"
#include "graphs/model_weights.h"
#include "models/model.h"

namespace sluice {

/// A model's packed weights in one file, in the order in which LoadedModel packs them, each at a
/// multiple of DirectFile::alignment. One file a model, GEMM type, processor's layout and version
/// of what packs; its first bytes say which, and that it is whole. Written under a temporary name
/// that it loses at the end, so what carries the final name is complete; several runs may write
/// the same file at once, each its own, and the last one's name stays.
class WeightFile {
 public:
  /// Looks for the model's file in `folder`, which is made if need be; where there is none that is
  /// whole, begins one, and removes what a killed run has left there. Throws Error when the folder
  /// cannot be used, or has no room for the file.
  WeightFile(const std::filesystem::path& folder, const Model& model, DType dtype,
             const HotExperts& hot = {});
  /// What was not published is gone.
  ~WeightFile();
  WeightFile(const WeightFile&) = delete;
  WeightFile& operator=(const WeightFile&) = delete;

  /// Every weight is there to be read; else all are to be written, and then published.
  bool is_whole() const { return whole_; }
  const std::filesystem::path& path() const { return path_; }
  /// Whole, in bytes.
  std::uint64_t size_bytes() const { return size_bytes_; }
  /// By this object.
  std::uint64_t written_bytes() const { return written_bytes_; }

  /// Where the next weight of `size` bytes lies: to be called for each, in LoadedModel's order.
  std::uint64_t place(std::size_t size);
  /// Throws Error when the disk is full or fails.
  void write(std::uint64_t offset, const std::byte* data, std::size_t size);
  /// All is written: onto the disk with it, under its name. Throws Error.
  void publish();
  /// The file, to read from; when it is whole. Throws Error.
  DirectFile open() const { return DirectFile(path_); }

  /// Bytes of the file of a model.
  static std::uint64_t size_of(const ModelConfig& config, DType dtype, const HotExperts& hot = {});
  /// Bytes that a run would write into `folder`: 0 where the model's file is there and whole.
  static std::uint64_t missing_bytes(const std::filesystem::path& folder, const Model& model,
                                     DType dtype, const HotExperts& hot = {});

 private:
  struct Look {};  ///< only, and make nothing
  WeightFile(Look, const std::filesystem::path& folder, const Model& model, DType dtype,
             const HotExperts& hot);
  void begin();
  void remove_left_behind() const;
  bool has_header() const;

  std::filesystem::path path_;
  std::filesystem::path temporary_;  ///< empty: none
  int descriptor_ = -1;
  std::string header_;
  std::uint64_t size_bytes_ = 0;
  std::uint64_t next_offset_ = 0;
  std::uint64_t written_bytes_ = 0;
  bool whole_ = false;
};

}  // namespace sluice
