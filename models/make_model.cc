#include "models/make_model.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/error.h"
#include "models/config_json.h"
#include "models/family.h"
#include "models/model.h"
#include "models/new_folder.h"
#include "models/random_values.h"
#include "models/stacked_tensor.h"
#include "models/weights.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kBufferBytes = std::size_t{4} << 20;

std::uint64_t bytes_of(const std::vector<std::int64_t>& shape, DType dtype) {
  const auto elements =
      std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
  return static_cast<std::uint64_t>(elements) * size_bytes(dtype);
}

std::optional<StackedPart> stacked_part(const Family& family, TensorId id) {
  return family.stacked_part != nullptr ? family.stacked_part(id) : std::nullopt;
}

/// All tensors, those of experts as the family's checkpoints have them.
std::vector<NewTensor> plan_tensors(const ModelConfig& config) {
  const Family& family = *find_family(config.family);
  std::vector<NewTensor> tensors;
  std::map<std::string, std::size_t> stacks;
  for (const TensorId id : expected_tensors(config)) {
    auto shape = expected_shape(config, id);
    std::string name = family.tensor_name(id);
    std::vector<TensorId> stacked;
    if (const auto part = stacked_part(family, id)) {
      if (id.expert > 0) continue;
      const auto [known, is_new] = stacks.emplace(part->stack, tensors.size());
      if (!is_new) {
        tensors[known->second].stacked.push_back(id);
        continue;
      }
      name = part->stack;
      shape = stack_shape(*part, shape, config.num_experts);
      stacked = {id};
    }
    const std::uint64_t bytes = bytes_of(shape, config.stored_dtype);
    tensors.push_back({.id = id,
                       .name = std::move(name),
                       .dtype = std::string(safetensors_name(config.stored_dtype)),
                       .shape = std::move(shape),
                       .bytes = bytes,
                       .stacked = std::move(stacked)});
  }
  return tensors;
}

std::vector<NewShard> plan_shards(const ModelConfig& config, std::uint64_t largest_bytes) {
  std::vector<NewShard> shards(1);
  for (NewTensor& tensor : plan_tensors(config)) {
    const std::uint64_t bytes = tensor.bytes;
    if (shards.back().bytes > 0 && shards.back().bytes + bytes > largest_bytes)
      shards.emplace_back();
    shards.back().tensors.push_back(std::move(tensor));
    shards.back().bytes += bytes;
  }
  for (NewShard& shard : shards) shard.lay_out();
  return shards;
}

/// Writes tensors of random values; `report` hears of every chunk's bytes.
struct Writer {
  const ModelConfig& config;
  const MakeModelOptions& options;
  std::function<void(std::uint64_t)> report;
  std::vector<std::byte> buffer = std::vector<std::byte>(kBufferBytes);

  void write_shard(const fs::path& path, const NewShard& shard) {
    NewFile file(path);
    file.write(safetensors_header(shard));
    for (const NewTensor& tensor : shard.tensors) {
      if (tensor.stacked.empty()) {
        write_tensor(file, tensor);
      } else {
        write_stack(file, tensor);
      }
    }
    file.close();
  }

 private:
  void write_tensor(NewFile& file, const NewTensor& tensor) {
    for (std::uint64_t done = 0; done < tensor.bytes; done += buffer.size()) {
      const auto chunk =
          std::span(buffer).first(std::min<std::uint64_t>(buffer.size(), tensor.bytes - done));
      fill_random(tensor.id.role, tensor.name, options.seed, options.dtype,
                  done / size_bytes(options.dtype), chunk);
      file.write(chunk);
      report(chunk.size());
    }
  }

  /// One expert after the other, each part with the values that it has by itself.
  void write_stack(NewFile& file, const NewTensor& tensor) const {
    const Family& family = *find_family(config.family);
    std::vector<std::byte> of_expert(tensor.bytes / static_cast<std::uint64_t>(tensor.shape[0]));
    std::vector<std::byte> values;
    for (std::int64_t expert = 0; expert < tensor.shape[0]; ++expert) {
      for (TensorId id : tensor.stacked) {
        id.expert = expert;
        const auto shape = expected_shape(config, id);
        values.resize(bytes_of(shape, options.dtype));
        fill_random(id.role, family.tensor_name(id), options.seed, options.dtype, 0, values);
        scatter_part(*family.stacked_part(id), shape, size_bytes(options.dtype), values.data(),
                     of_expert.data());
      }
      file.write(of_expert);
      report(of_expert.size());
    }
  }
};

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
  const std::uint64_t all_bytes = total_bytes(shards);
  std::uint64_t done_bytes = 0;
  const auto report = [&](std::uint64_t bytes) {
    done_bytes += bytes;
    if (options.progress) options.progress(done_bytes, all_bytes);
  };
  Writer writer{stored, options, report};
  for (std::size_t i = 0; i < shards.size(); ++i)
    writer.write_shard(folder.path() / shard_name(i, shards.size()), shards[i]);
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
