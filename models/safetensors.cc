#include "models/safetensors.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/json.h"

namespace sluice {
namespace {

using nlohmann::json;

constexpr std::uint64_t kLengthBytes = 8;
constexpr std::uint64_t kLongestHeaderBytes = 100'000'000;  // the reference implementation's limit
static_assert(std::endian::native == std::endian::little, "safetensors are read in place");

/// Bits of one element; nothing for a type that is not in the specification.
std::optional<std::uint64_t> element_bits(std::string_view dtype) {
  struct Size {
    std::string_view dtype;
    std::uint64_t bits;
  };
  static constexpr Size sizes[] = {{"BF16", 16},   {"F16", 16},    {"F32", 32},    {"F64", 64},
                                   {"BOOL", 8},    {"U8", 8},      {"I8", 8},      {"U16", 16},
                                   {"I16", 16},    {"U32", 32},    {"I32", 32},    {"U64", 64},
                                   {"I64", 64},    {"C64", 64},    {"F8_E5M2", 8}, {"F8_E4M3", 8},
                                   {"F8_E8M0", 8}, {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F4", 4}};
  for (const Size& size : sizes) {
    if (size.dtype == dtype) return size.bits;
  }
  return std::nullopt;
}

/// Reads the fields of one tensor's entry in the header.
class EntryReader {
 public:
  EntryReader(const std::string& path, const std::string& name, const json& entry)
      : path_(path), name_(name), entry_(entry) {
    if (!entry.is_object()) fail("its entry is {}, expected a JSON object", describe(entry));
  }

  Safetensors::Tensor read(std::uint64_t data_bytes) const {
    Safetensors::Tensor tensor;
    const json& dtype = field("dtype");
    if (!dtype.is_string()) fail("dtype is {}, expected a text", describe(dtype));
    tensor.dtype = dtype.get<std::string>();
    tensor.shape = read_shape();
    std::tie(tensor.begin, tensor.end) = read_offsets(data_bytes);
    check_size(tensor);
    return tensor;
  }

 private:
  template <typename... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw Error("{}: tensor {}: {}; the file is damaged, get it again", path_, quote(name_),
                fmt::format(format, std::forward<Args>(args)...));
  }

  const json& field(const char* key) const {
    const auto found = entry_.find(key);
    if (found == entry_.end()) fail("{} is missing", key);
    return *found;
  }

  std::vector<std::int64_t> read_shape() const {
    const json& list = field("shape");
    if (!list.is_array()) fail("shape is {}, expected a list", describe(list));
    std::vector<std::int64_t> shape;
    for (const json& size : list) {
      constexpr auto highest = static_cast<std::uint64_t>(INT64_MAX);
      if (!size.is_number_unsigned() || size.get<std::uint64_t>() > highest) {
        fail("shape holds {}, expected whole numbers from 0", describe(size));
      }
      shape.push_back(size.get<std::int64_t>());
    }
    return shape;
  }

  std::pair<std::uint64_t, std::uint64_t> read_offsets(std::uint64_t data_bytes) const {
    const json& list = field("data_offsets");
    if (!list.is_array() || list.size() != 2 || !list[0].is_number_unsigned() ||
        !list[1].is_number_unsigned()) {
      fail("data_offsets is {}, expected two whole numbers from 0", describe(list));
    }
    const auto begin = list[0].get<std::uint64_t>();
    const auto end = list[1].get<std::uint64_t>();
    if (begin > end) fail("data_offsets begin at {} and end at {}", begin, end);
    if (end > data_bytes) {
      fail("data ends at byte {} but the file has {} bytes of data (a download cut short?)", end,
           data_bytes);
    }
    return {begin, end};
  }

  void check_size(const Safetensors::Tensor& tensor) const {
    const auto bits = element_bits(tensor.dtype);
    if (!bits) return;  // view() refuses the type; a model may carry what it does not need
    std::uint64_t total = *bits;
    bool overflows = false;
    for (std::int64_t size : tensor.shape) {
      overflows |= __builtin_mul_overflow(total, static_cast<std::uint64_t>(size), &total);
    }
    const std::uint64_t bytes = tensor.end - tensor.begin;
    if (overflows || total % 8 != 0 || total / 8 != bytes) {
      fail("{} bytes of data do not fit shape [{}] of {}", bytes, fmt::join(tensor.shape, ", "),
           tensor.dtype);
    }
  }

  const std::string& path_;
  const std::string& name_;
  const json& entry_;
};

/// The length of the JSON header.
std::uint64_t read_header_bytes(const FileBytes& file) {
  const std::uint64_t file_bytes = file.bytes().size();
  if (file_bytes < kLengthBytes) {
    throw Error("{}: {} bytes are too few for a safetensors file; get it again", file.path(),
                file_bytes);
  }
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.bytes().data(), kLengthBytes);
  if (header_bytes > kLongestHeaderBytes) {
    throw Error("{}: a header of {} bytes, at most {} are allowed; is it a safetensors file?",
                file.path(), header_bytes, kLongestHeaderBytes);
  }
  if (header_bytes > file_bytes - kLengthBytes) {
    throw Error("{}: the header has {} bytes but the file ends after {} (a download cut short?)",
                file.path(), header_bytes, file_bytes);
  }
  return header_bytes;
}

/// The tensors must follow each other without gap or overlap and fill the file.
void check_layout(const std::string& path, std::uint64_t data_bytes,
                  const std::map<std::string, Safetensors::Tensor, std::less<>>& tensors) {
  std::vector<std::pair<const Safetensors::Tensor*, const std::string*>> order;
  order.reserve(tensors.size());
  for (const auto& [name, tensor] : tensors) order.emplace_back(&tensor, &name);
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return std::pair(a.first->begin, a.first->end) < std::pair(b.first->begin, b.first->end);
  });
  std::uint64_t position = 0;
  for (const auto& [tensor, name] : order) {
    if (tensor->begin != position) {
      throw Error(
          "{}: tensor {} begins at byte {} of the data, expected {}: {}; get the file again", path,
          quote(*name), tensor->begin, position,
          tensor->begin < position ? "it overlaps another" : "there is a hole before it");
    }
    position = tensor->end;
  }
  if (position != data_bytes) {
    throw Error("{}: the tensors end at byte {} of the data, the file has {}; get the file again",
                path, position, data_bytes);
  }
}

std::optional<DType> supported_dtype(std::string_view dtype) {
  if (dtype == "BF16") return DType::bf16;
  if (dtype == "F16") return DType::f16;
  if (dtype == "F32") return DType::f32;
  return std::nullopt;
}

}  // namespace

Safetensors Safetensors::parse(FileBytes file) {
  const std::uint64_t header_bytes = read_header_bytes(file);
  Safetensors result(std::move(file));
  result.data_offset_ = kLengthBytes + header_bytes;
  const auto* text = reinterpret_cast<const char*>(result.file_.bytes().data()) + kLengthBytes;
  const std::string where = fmt::format("{} (header)", result.path());
  const json header = parse_json({text, header_bytes}, where, DuplicateKeys::refuse);
  if (!header.is_object()) throw Error("{} is {}, expected a JSON object", where, describe(header));

  const std::uint64_t data_bytes = result.file_.bytes().size() - result.data_offset_;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    result.tensors_.emplace(name, EntryReader(result.path(), name, entry).read(data_bytes));
  }
  check_layout(result.path(), data_bytes, result.tensors_);
  return result;
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

StoredTensor Safetensors::stored(std::string_view name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) throw Error("{}: there is no tensor {}", path(), quote(name));
  const Tensor& tensor = found->second;
  return {.name = found->first,
          .file = path(),
          .dtype = tensor.dtype,
          .shape = tensor.shape,
          .data = file_.bytes().subspan(data_offset_ + tensor.begin, tensor.end - tensor.begin)};
}

TensorView Safetensors::view(std::string_view name) const {
  StoredTensor tensor = stored(name);
  const auto dtype = supported_dtype(tensor.dtype);
  if (!dtype) {
    throw Error("{}: tensor {} is of type {}, expected BF16, F16 or F32", path(), quote(name),
                quote(tensor.dtype));
  }
  return {.name = std::move(tensor.name),
          .file = std::move(tensor.file),
          .dtype = *dtype,
          .shape = std::move(tensor.shape),
          .data = tensor.data};
}

}  // namespace sluice
