#include "models/make_model.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "base/error.h"
#include "models/config_json.h"
#include "models/family.h"
#include "models/model.h"
#include "models/new_folder.h"
#include "models/random_values.h"
#include "models/weights.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kBufferBytes = std::size_t{4} << 20;

std::vector<NewShard> plan_shards(const ModelConfig& config, std::uint64_t largest_bytes) {
  const Family& family = *find_family(config.family);
  std::vector<NewShard> shards(1);
  for (TensorId id : expected_tensors(config)) {
    auto shape = expected_shape(config, id);
    const auto elements =
        std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
    const std::uint64_t bytes =
        static_cast<std::uint64_t>(elements) * size_bytes(config.stored_dtype);
    if (shards.back().bytes > 0 && shards.back().bytes + bytes > largest_bytes)
      shards.emplace_back();
    shards.back().tensors.push_back({.id = id,
                                     .name = family.tensor_name(id),
                                     .dtype = std::string(safetensors_name(config.stored_dtype)),
                                     .shape = std::move(shape),
                                     .bytes = bytes});
    shards.back().bytes += bytes;
  }
  for (NewShard& shard : shards) shard.lay_out();
  return shards;
}

/// `report` hears of every chunk's bytes.
void write_shard(const fs::path& path, const NewShard& shard, const MakeModelOptions& options,
                 std::vector<std::byte>& buffer, const std::function<void(std::uint64_t)>& report) {
  NewFile file(path);
  file.write(safetensors_header(shard));
  for (const NewTensor& tensor : shard.tensors) {
    for (std::uint64_t done = 0; done < tensor.bytes; done += buffer.size()) {
      const auto chunk =
          std::span(buffer).first(std::min<std::uint64_t>(buffer.size(), tensor.bytes - done));
      fill_random(tensor.id.role, tensor.name, options.seed, options.dtype,
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
  const std::vector<NewShard> shards = plan_shards(stored, options.largest_shard_bytes);
  const fs::path target = checked_target(out_dir);
  check_space(target, total_bytes(shards), "choose another disk or a smaller model");

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
