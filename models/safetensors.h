#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/files.h"
#include "models/weights.h"

namespace sluice {

/// A tensor of any type where it lies. `data` need not be aligned to the element.
struct StoredTensor {
  std::string name;   ///< its name in the checkpoint, for messages
  std::string file;   ///< the file it came from, for messages
  std::string dtype;  ///< as the header writes it: "BF16", "I32"...
  std::vector<std::int64_t> shape;
  std::span<const std::byte> data;
};

/// "[2, 3]", for messages.
std::string shape_text(const std::vector<std::int64_t>& shape);

/// A safetensors file: 8 bytes of header length, a JSON header, then the tensors' bytes without
/// gaps. See the format's specification in huggingface/safetensors.
class Safetensors {
 public:
  struct Tensor {
    std::string dtype;  ///< as the header writes it: "BF16", "I64"...
    std::vector<std::int64_t> shape;
    std::uint64_t begin = 0;  ///< bytes after the header
    std::uint64_t end = 0;
  };

  /// Checks the whole header against the file, so that no view can reach outside it. Throws Error.
  static Safetensors parse(FileBytes file);

  const std::string& path() const { return file_.path(); }
  std::span<const std::byte> bytes() const { return file_.bytes(); }
  const std::map<std::string, Tensor, std::less<>>& tensors() const { return tensors_; }

  /// Throws Error when there is no such tensor, or it is not of type BF16, F16 or F32.
  TensorView view(std::string_view name) const;
  /// Of whatever type. Throws Error when there is no such tensor.
  StoredTensor stored(std::string_view name) const;

 private:
  explicit Safetensors(FileBytes file) : file_(std::move(file)) {}

  FileBytes file_;
  std::uint64_t data_offset_ = 0;
  std::map<std::string, Tensor, std::less<>> tensors_;
};

}  // namespace sluice
