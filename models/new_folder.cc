#include "models/new_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <numeric>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/json.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr std::uint64_t kSpareBytes = std::uint64_t{1} << 20;  // headers and the small files

std::size_t element_bytes(std::string_view dtype) {
  if (dtype.ends_with("64")) return 8;
  if (dtype.ends_with("32")) return 4;
  return dtype.ends_with("16") ? 2 : 1;
}

}  // namespace

void NewShard::lay_out() {
  std::stable_sort(tensors.begin(), tensors.end(), [](const NewTensor& a, const NewTensor& b) {
    return element_bytes(a.dtype) > element_bytes(b.dtype);
  });
  bytes = 0;
  for (NewTensor& tensor : tensors) {
    tensor.position = bytes;
    bytes += tensor.bytes;
  }
}

std::uint64_t total_bytes(const std::vector<NewShard>& shards) {
  return std::accumulate(
      shards.begin(), shards.end(), std::uint64_t{0},
      [](std::uint64_t sum, const NewShard& shard) { return sum + shard.bytes; });
}

std::string shard_name(std::size_t index, std::size_t count) {
  if (count == 1) return "model.safetensors";
  return fmt::format("model-{:05}-of-{:05}.safetensors", index + 1, count);
}

std::string_view safetensors_name(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return "BF16";
    case DType::f16:
      return "F16";
    case DType::f32:
      break;
  }
  return "F32";
}

std::string safetensors_header(const NewShard& shard) {
  ordered_json header;
  header["__metadata__"] = {{"format", "pt"}};
  for (const NewTensor& tensor : shard.tensors) {
    header[tensor.name] = {{"dtype", tensor.dtype},
                           {"shape", tensor.shape},
                           {"data_offsets", {tensor.position, tensor.position + tensor.bytes}}};
  }
  std::string text = json_text(header);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + text;
}

std::string index_json(const std::vector<NewShard>& shards) {
  ordered_json index;
  index["metadata"]["total_size"] = total_bytes(shards);
  for (std::size_t i = 0; i < shards.size(); ++i) {
    for (const NewTensor& tensor : shards[i].tensors)
      index["weight_map"][tensor.name] = shard_name(i, shards.size());
  }
  return json_text(index, 2) + "\n";
}

NewFile::NewFile(const fs::path& path)
    : path_(path.string()),
      descriptor_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)) {
  if (descriptor_ < 0) fail(errno);
}

NewFile::~NewFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void NewFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail(errno);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

void NewFile::write_at(std::uint64_t offset, std::span<const std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t written =
        ::pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail(errno);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
    offset += static_cast<std::uint64_t>(written);
  }
}

void NewFile::close() {
  if (::close(std::exchange(descriptor_, -1)) != 0) fail(errno);
}

void NewFile::fail(int error) const {
  throw Error("{}: cannot be written: {}", path_, std::generic_category().message(error));
}

void write_text(const fs::path& path, std::string_view text) {
  NewFile file(path);
  file.write(text);
  file.close();
}

fs::path checked_target(const std::string& out_dir) {
  fs::path target = fs::path(out_dir).lexically_normal();
  if (!target.has_filename()) target = target.parent_path();
  if (target.empty()) throw Error("no output folder given");
  std::error_code error;
  const fs::file_status status = fs::status(target, error);
  if (fs::exists(status) && !(fs::is_directory(status) && fs::is_empty(target, error))) {
    throw Error("'{}' exists; give a new folder or an empty one", out_dir);
  }
  return target;
}

void check_space(const fs::path& target, std::uint64_t bytes, std::string_view advice) {
  const fs::path parent = target.has_parent_path() ? target.parent_path() : fs::path(".");
  std::error_code error;
  const fs::space_info space = fs::space(parent, error);
  if (error) throw Error("folder '{}' cannot be used: {}", parent.string(), error.message());
  if (space.available < bytes + kSpareBytes) {
    throw Error("'{}' would take {:.1f} GB, its disk has {:.1f} GB free; {}", target.string(),
                static_cast<double>(bytes) * 1e-9, static_cast<double>(space.available) * 1e-9,
                advice);
  }
}

FolderInProgress::FolderInProgress(fs::path target)
    : target_(std::move(target)),
      path_(fmt::format("{}.partial-{}", target_.string(), ::getpid())) {
  std::error_code error;
  if (!fs::create_directory(path_, error)) {
    throw Error("folder '{}' cannot be made: {}", path_.string(),
                error ? error.message() : "it exists");
  }
}

FolderInProgress::~FolderInProgress() {
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(path_, ignored);
}

void FolderInProgress::commit() {
  std::error_code error;
  fs::rename(path_, target_, error);
  if (error) throw Error("folder '{}' cannot be made: {}", target_.string(), error.message());
  path_.clear();
}

}  // namespace sluice
