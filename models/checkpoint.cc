#include "models/checkpoint.h"

#include <fmt/ranges.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "models/family.h"

namespace sluice {
namespace {

using nlohmann::json;

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";
constexpr std::string_view kPrefix = "model.";

/// weight_map of the index, its values checked to be names of files in the same folder.
std::map<std::string, std::string> read_weight_map(const std::string& text,
                                                   const std::string& path) {
  const json index = parse_json(text, path, DuplicateKeys::refuse);
  const auto map = index.is_object() ? index.find("weight_map") : index.end();
  if (map == index.end() || !map->is_object())
    throw Error("{}: there is no object weight_map", path);
  std::map<std::string, std::string> result;
  for (const auto& [name, file] : map->items()) {
    const std::string* shard = file.get_ptr<const std::string*>();
    if (shard == nullptr || shard->empty() || shard->find('/') != std::string::npos ||
        shard->find('\0') != std::string::npos) {
      throw Error(
          "{}: weight_map gives {} for tensor {}, expected the name of a file in the same folder",
          path, describe(file), quote(name));
    }
    result.emplace(name, *shard);
  }
  return result;
}

[[noreturn]] void no_weights(const ModelFiles& files) {
  for (const char* other : {"pytorch_model.bin", "pytorch_model.bin.index.json"}) {
    if (files.contains(other)) {
      throw Error("{} is not supported, only safetensors are; convert the model, or get it as {}",
                  files.path(other), kSingleFile);
    }
  }
  throw Error("'{}' holds neither {} nor {}", files.root(), kSingleFile, kIndexFile);
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

/// Weights in mapped files.
class CheckpointWeights : public WeightSource {
 public:
  CheckpointWeights(Checkpoint checkpoint, const ModelConfig& config)
      : checkpoint_(std::move(checkpoint)), family_(find_family(config.family)) {
    for (TensorId id : expected_tensors(config)) views_.emplace(key(id), find(config, id));
  }

  TensorView tensor(TensorId id) const override {
    const auto found = views_.find(key(id));
    if (found == views_.end()) {
      throw Error("{}: this model has no {} in layer {}", checkpoint_.path(), to_string(id.role),
                  id.layer);
    }
    return found->second;
  }

  /// The pages leave this process's memory; the system's cache may keep them.
  void release(TensorId id) const override {
    const auto found = views_.find(key(id));
    if (found == views_.end()) return;
    const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
    const auto begin = reinterpret_cast<std::uintptr_t>(found->second.data.data());
    const std::uintptr_t first = (begin + page - 1) / page * page;
    const std::uintptr_t last = (begin + found->second.data.size()) / page * page;
    if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
  }

  std::string identity() const override { return checkpoint_.identity(); }

 private:
  static std::int64_t key(TensorId id) {
    return id.layer * 256 + static_cast<std::int64_t>(id.role);
  }

  TensorView find(const ModelConfig& config, TensorId id) const {
    const std::string name = family_->tensor_name(id);
    auto view = checkpoint_.find(name);
    if (!view) {
      throw Error(
          "{}: tensor {} is missing; config.json asks for it ({} layers, tie_word_embeddings {})",
          checkpoint_.path(), quote(name), config.num_layers, config.tied_embeddings);
    }
    const auto expected = expected_shape(config, id.role);
    if (view->shape != expected) {
      throw Error("{}: tensor {} has shape {}, expected {} = {} of config.json", view->file,
                  quote(view->name), shape_text(view->shape), shape_text(expected),
                  expected_shape_fields(config, id.role));
    }
    return *std::move(view);
  }

  Checkpoint checkpoint_;
  const Family* family_;
  std::unordered_map<std::int64_t, TensorView> views_;
};

}  // namespace

Checkpoint Checkpoint::open(const ModelFiles& files) {
  Checkpoint checkpoint;
  if (auto single = files.map(kSingleFile)) {
    checkpoint.path_ = single->path();
    checkpoint.shards_.push_back(
        std::make_unique<const Safetensors>(Safetensors::parse(*std::move(single))));
  } else if (const auto index = files.read(kIndexFile)) {
    checkpoint.path_ = files.path(kIndexFile);
    checkpoint.open_shards(files, *index);
  } else {
    no_weights(files);
  }
  return checkpoint;
}

void Checkpoint::open_shards(const ModelFiles& files, const std::string& index_text) {
  std::map<std::string, const Safetensors*> opened;
  for (const auto& [tensor, file] : read_weight_map(index_text, path_)) {
    auto [shard, is_new] = opened.emplace(file, nullptr);
    if (is_new) {
      auto bytes = files.map(file);
      if (!bytes) {
        throw Error("{} is missing; {} names it: get it again", files.path(file), path_);
      }
      shards_.push_back(std::make_unique<const Safetensors>(Safetensors::parse(*std::move(bytes))));
      shard->second = shards_.back().get();
    }
    if (!shard->second->tensors().contains(tensor)) {
      throw Error("{}: tensor {} is missing; {} says that it is here: get both again",
                  files.path(file), quote(tensor), path_);
    }
    weight_map_.emplace(tensor, shard->second);
  }
}

const Safetensors* Checkpoint::file_of(std::string_view name) const {
  if (shards_.size() == 1 && weight_map_.empty()) {
    return shards_.front()->tensors().contains(name) ? shards_.front().get() : nullptr;
  }
  const auto found = weight_map_.find(name);
  return found == weight_map_.end() ? nullptr : found->second;
}

std::string Checkpoint::identity() const {
  std::string text;
  for (const auto& shard : shards_) {
    struct stat status {};
    if (stat(shard->path().c_str(), &status) == 0) {
      std::error_code error;
      const std::filesystem::path path = std::filesystem::canonical(shard->path(), error);
      text += fmt::format("{} {} {}.{}; ", path.string(), status.st_size, status.st_mtim.tv_sec,
                          status.st_mtim.tv_nsec);
    } else {
      const std::span<const std::byte> bytes = shard->bytes();  // embedded: few
      const std::string_view as_text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      text += fmt::format("{} {} {:x}; ", shard->path(), bytes.size(),
                          std::hash<std::string_view>()(as_text));
    }
  }
  return text;
}

std::optional<TensorView> Checkpoint::find(const std::string& usual_name) const {
  const bool prefixed = usual_name.starts_with(kPrefix);
  const std::array<std::string, 3> candidates = {
      usual_name, prefixed ? usual_name.substr(kPrefix.size()) : usual_name,
      std::string(kPrefix) + usual_name};
  for (const std::string& name : candidates) {
    if (const Safetensors* file = file_of(name)) return file->view(name);
  }
  return std::nullopt;
}

std::shared_ptr<const WeightSource> open_weights(const ModelFiles& files,
                                                 const ModelConfig& config) {
  return std::make_shared<CheckpointWeights>(Checkpoint::open(files), config);
}

}  // namespace sluice
