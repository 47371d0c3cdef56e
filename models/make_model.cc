#include "models/make_model.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>
#include <system_error>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "models/config_json.h"
#include "models/family.h"
#include "models/model.h"
#include "models/random_values.h"
#include "models/weights.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr std::size_t kBufferBytes = std::size_t{4} << 20;
constexpr std::uint64_t kSpareBytes = std::uint64_t{1} << 20;  // headers and the small files

struct Entry {
  TensorRole role;
  std::string name;
  std::vector<std::int64_t> shape;
  std::uint64_t bytes;
};

struct Shard {
  std::vector<Entry> entries;
  std::uint64_t bytes = 0;
};

std::vector<Shard> plan_shards(const ModelConfig& config, std::uint64_t largest_bytes) {
  const Family& family = *find_family(config.family);
  std::vector<Shard> shards(1);
  for (TensorId id : expected_tensors(config)) {
    auto shape = expected_shape(config, id.role);
    const auto elements =
        std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
    const std::uint64_t bytes =
        static_cast<std::uint64_t>(elements) * size_bytes(config.stored_dtype);
    if (shards.back().bytes > 0 && shards.back().bytes + bytes > largest_bytes)
      shards.emplace_back();
    shards.back().entries.push_back({id.role, family.tensor_name(id), std::move(shape), bytes});
    shards.back().bytes += bytes;
  }
  return shards;
}

std::uint64_t total_bytes(const std::vector<Shard>& shards) {
  return std::accumulate(shards.begin(), shards.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const Shard& shard) { return sum + shard.bytes; });
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

/// Length and JSON, padded so that the data is aligned to 8 bytes.
std::string safetensors_header(const Shard& shard, DType dtype) {
  ordered_json header;
  header["__metadata__"] = {{"format", "pt"}};
  std::uint64_t position = 0;
  for (const Entry& entry : shard.entries) {
    header[entry.name] = {{"dtype", safetensors_name(dtype)},
                          {"shape", entry.shape},
                          {"data_offsets", {position, position + entry.bytes}}};
    position += entry.bytes;
  }
  std::string text = json_text(header);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + text;
}

std::string index_json(const std::vector<Shard>& shards) {
  ordered_json index;
  index["metadata"]["total_size"] = total_bytes(shards);
  for (std::size_t i = 0; i < shards.size(); ++i) {
    for (const Entry& entry : shards[i].entries) {
      index["weight_map"][entry.name] = shard_name(i, shards.size());
    }
  }
  return json_text(index, 2) + "\n";
}

/// A file being written; every failure throws Error with the system's reason.
class NewFile {
 public:
  explicit NewFile(const fs::path& path)
      : path_(path.string()),
        descriptor_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)) {
    if (descriptor_ < 0) fail(errno);
  }
  ~NewFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  void write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) fail(errno);
      bytes = bytes.subspan(static_cast<std::size_t>(written));
    }
  }
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }

  void close() {
    if (::close(std::exchange(descriptor_, -1)) != 0) fail(errno);
  }

 private:
  [[noreturn]] void fail(int error) const {
    throw Error("{}: cannot be written: {}", path_, std::generic_category().message(error));
  }

  std::string path_;
  int descriptor_;
};

/// A folder beside the target that takes the target's name once all is written, and goes otherwise.
class FolderInProgress {
 public:
  explicit FolderInProgress(fs::path target)
      : target_(std::move(target)),
        path_(fmt::format("{}.partial-{}", target_.string(), ::getpid())) {
    std::error_code error;
    if (!fs::create_directory(path_, error)) {
      throw Error("folder '{}' cannot be made: {}", path_.string(),
                  error ? error.message() : "it exists");
    }
  }
  ~FolderInProgress() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  FolderInProgress(const FolderInProgress&) = delete;
  FolderInProgress& operator=(const FolderInProgress&) = delete;

  const fs::path& path() const { return path_; }

  void commit() {
    std::error_code error;
    fs::rename(path_, target_, error);
    if (error) throw Error("folder '{}' cannot be made: {}", target_.string(), error.message());
    path_.clear();
  }

 private:
  fs::path target_;
  fs::path path_;
};

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

void check_space(const fs::path& target, std::uint64_t bytes) {
  const fs::path parent = target.has_parent_path() ? target.parent_path() : fs::path(".");
  std::error_code error;
  const fs::space_info space = fs::space(parent, error);
  if (error) throw Error("folder '{}' cannot be used: {}", parent.string(), error.message());
  if (space.available < bytes + kSpareBytes) {
    throw Error(
        "'{}' would take {:.1f} GB, its disk has {:.1f} GB free; choose another disk or a smaller "
        "model",
        target.string(), static_cast<double>(bytes) * 1e-9,
        static_cast<double>(space.available) * 1e-9);
  }
}

void write_text(const fs::path& path, std::string_view text) {
  NewFile file(path);
  file.write(text);
  file.close();
}

/// `report` hears of every chunk's bytes.
void write_shard(const fs::path& path, const Shard& shard, const MakeModelOptions& options,
                 std::vector<std::byte>& buffer, const std::function<void(std::uint64_t)>& report) {
  NewFile file(path);
  file.write(safetensors_header(shard, options.dtype));
  for (const Entry& entry : shard.entries) {
    for (std::uint64_t done = 0; done < entry.bytes; done += buffer.size()) {
      const auto chunk =
          std::span(buffer).first(std::min<std::uint64_t>(buffer.size(), entry.bytes - done));
      fill_random(entry.role, entry.name, options.seed, options.dtype,
                  done / size_bytes(options.dtype), chunk);
      file.write(chunk);
      report(chunk.size());
    }
  }
  file.close();
}

}  // namespace

void write_model(const ModelConfig& config, const std::string& out_dir,
                 const MakeModelOptions& options) {
  ModelConfig stored = config;
  stored.stored_dtype = options.dtype;
  check_config(stored, "make-model");
  const std::string config_text = config_json(stored);
  const std::vector<Shard> shards = plan_shards(stored, options.largest_shard_bytes);
  const fs::path target = checked_target(out_dir);
  check_space(target, total_bytes(shards));

  FolderInProgress folder(target);
  std::vector<std::byte> buffer(kBufferBytes);
  const std::uint64_t all_bytes = total_bytes(shards);
  std::uint64_t done_bytes = 0;
  const auto report = [&](std::uint64_t bytes) {
    done_bytes += bytes;
    if (options.progress) options.progress(done_bytes, all_bytes);
  };
  for (std::size_t i = 0; i < shards.size(); ++i) {
    write_shard(folder.path() / shard_name(i, shards.size()), shards[i], options, buffer, report);
  }
  if (shards.size() > 1) {
    write_text(folder.path() / "model.safetensors.index.json", index_json(shards));
  }
  write_text(folder.path() / "generation_config.json", generation_config_json(stored));
  write_text(folder.path() / "config.json", config_text);
  folder.commit();
}

void make_model(const std::string& shape, const std::string& out_dir, DType dtype,
                std::uint64_t seed, const MakeModelProgress& progress) {
  write_model(find_shape(shape), out_dir, {.dtype = dtype, .seed = seed, .progress = progress});
}

}  // namespace sluice
