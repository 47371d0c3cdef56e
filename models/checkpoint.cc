#include "models/checkpoint.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "models/family.h"
#include "models/quantized/method.h"
#include "models/stacked_tensor.h"

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
      throw Error(
          "{} is not supported, only safetensors are; get the model as {}, or convert it: python3 "
          "-c \"from transformers import AutoModelForCausalLM as M; "
          "M.from_pretrained('{}', dtype='auto').save_pretrained('OUT')\"",
          files.path(other), kSingleFile, files.root());
    }
  }
  throw Error("'{}' holds neither {} nor {}", files.root(), kSingleFile, kIndexFile);
}

void forget_pages(std::span<const std::byte> bytes) {
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<std::uintptr_t>(bytes.data());
  const std::uintptr_t first = (begin + page - 1) / page * page;
  const std::uintptr_t last = (begin + bytes.size()) / page * page;
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

/// Of one shape, perhaps of two types.
bool same_values(const TensorView& a, const TensorView& b) {
  if (a.dtype == b.dtype) return std::memcmp(a.data.data(), b.data.data(), a.data.size()) == 0;
  constexpr std::size_t block = 1 << 16;
  std::vector<float> of_a(block);
  std::vector<float> of_b(block);
  const std::size_t count = a.data.size() / size_bytes(a.dtype);
  for (std::size_t first = 0; first < count; first += block) {
    const std::size_t some = std::min(block, count - first);
    read_floats(a, first, some, of_a.data());
    read_floats(b, first, some, of_b.data());
    if (!std::equal(of_a.begin(), of_a.begin() + static_cast<std::ptrdiff_t>(some), of_b.begin()))
      return false;
  }
  return true;
}

constexpr std::string_view kWeight = ".weight";

/// Whether there are codes of a method for this weight, under its own name or another.
bool has_codes(const Checkpoint& checkpoint, const QuantizationMethod& method,
               const std::string& module) {
  const auto is_code = [&](std::string_view part) {
    const auto found = checkpoint.find_stored(module + std::string(part));
    return found && found->dtype != "BF16" && found->dtype != "F16" && found->dtype != "F32";
  };
  return is_code(method.codes_part) || is_code(kWeight);
}

/// Whether the head is quantised, whatever config.json says of tying.
bool has_quantized_head(const Checkpoint& checkpoint, const ModelConfig& config) {
  if (!config.quantization) return false;
  const std::string module =
      module_of(find_family(config.family)->tensor_name({TensorRole::lm_head}));
  return has_codes(checkpoint, quantization_method(*config.quantization), module);
}

/// Unties a head that the checkpoint has of its own.
void untie_differing_head(const Checkpoint& checkpoint, ModelConfig& config) {
  if (!config.tied_embeddings) return;
  if (has_quantized_head(checkpoint, config)) {
    config.tied_embeddings = false;
    return;
  }
  const Family* family = find_family(config.family);
  const auto head = checkpoint.find(family->tensor_name({TensorRole::lm_head}));
  const auto embedding = checkpoint.find(family->tensor_name({TensorRole::token_embedding}));
  if (!head || !embedding) return;
  const bool same = head->shape == embedding->shape && same_values(*head, *embedding);
  forget_pages(head->data);
  forget_pages(embedding->data);
  if (same) return;
  config.tied_embeddings = false;
  if (!is_first_time(head->file + " head")) return;
  logger().warn(
      "{}: {} differs from the embedding that config.json ties it to (tie_word_embeddings); the "
      "head of the file counts, as in Transformers 5",
      head->file, quote(head->name));
}

[[noreturn]] void refuse_missing(const Checkpoint& checkpoint, const ModelConfig& config,
                                 const std::string& name) {
  const std::string module = name.ends_with(kWeight) ? module_of(name) : name;
  for (const QuantizationMethod* method : quantization_methods()) {
    if (config.quantization) break;
    if (!has_codes(checkpoint, *method, module)) continue;
    throw Error(
        "{}: tensor {} is quantised ({}{}), but config.json has no quantization_config; "
        "get both again",
        checkpoint.path(), quote(name), module, method->codes_part);
  }
  throw Error(
      "{}: tensor {} is missing; config.json asks for it ({} layers, tie_word_embeddings {})",
      checkpoint.path(), quote(name), config.num_layers, config.tied_embeddings);
}

/// Weights in mapped files.
class CheckpointWeights : public WeightSource {
 public:
  CheckpointWeights(Checkpoint checkpoint, const ModelConfig& config)
      : checkpoint_(std::move(checkpoint)), family_(find_family(config.family)) {
    for (TensorId id : expected_tensors(config)) {
      if (auto coded = find_quantized(config, id)) {
        quantized_.emplace(id.key(), std::move(coded));
      } else if (auto stacked = find_stacked(config, id)) {
        stacked_.emplace(id.key(), std::move(stacked));
      } else {
        views_.emplace(id.key(), find(config, id));
      }
    }
    if (config.quantization && quantized_.empty()) {
      throw Error(
          "{}: no weight is quantised, but config.json has a quantization_config (quant_method "
          "{}); get both again, or remove quantization_config",
          checkpoint_.path(), quote(config.quantization->method));
    }
  }

  TensorView tensor(TensorId id) const override {
    const auto found = views_.find(id.key());
    if (found != views_.end()) return found->second;
    if (const StackedTensor* stacked = stacked_of(id)) return stacked->view();
    if (const auto coded = quantized(id)) {
      throw Error("{}: tensor {} is quantised ({}), expected a plain one in bf16, f16 or f32",
                  coded->file(), quote(coded->name()), to_string(coded->format()));
    }
    throw Error("{}: this model has no {} in {}", checkpoint_.path(), to_string(id.role),
                place_of(id));
  }

  std::shared_ptr<const QuantizedTensor> quantized(TensorId id) const override {
    const auto found = quantized_.find(id.key());
    return found == quantized_.end() ? nullptr : found->second;
  }

  /// Without putting parts of a stack together.
  WeightFormat format(TensorId id) const override {
    if (const StackedTensor* stacked = stacked_of(id)) return WeightFormat::plain(stacked->dtype());
    return WeightSource::format(id);
  }

  /// The pages leave this process's memory; the system's cache may keep them.
  void release(TensorId id) const override {
    if (const auto found = views_.find(id.key()); found != views_.end())
      forget_pages(found->second.data);
    if (const StackedTensor* stacked = stacked_of(id)) {
      stacked->release();
      forget_pages(stacked->stored());
    }
    if (const auto coded = quantized(id)) {
      for (const StoredTensor& part : coded->parts()) forget_pages(part.data);
    }
  }

  std::string identity() const override { return checkpoint_.identity(); }

 private:
  std::shared_ptr<const QuantizedTensor> find_quantized(const ModelConfig& config,
                                                        TensorId id) const {
    const std::string_view of_class = module_class(id.role);
    if (!config.quantization || of_class.empty()) return nullptr;
    const WeightName weight = {.module = module_of(family_->tensor_name(id)),
                               .module_class = of_class,
                               .shape = expected_shape(config, id),
                               .stacked = stacked_part(id),
                               .num_experts = config.num_experts};
    return quantization_method(*config.quantization)
        .find(*config.quantization, checkpoint_, weight);
  }

  std::optional<StackedPart> stacked_part(TensorId id) const {
    return family_->stacked_part != nullptr ? family_->stacked_part(id) : std::nullopt;
  }

  const StackedTensor* stacked_of(TensorId id) const {
    const auto found = stacked_.find(id.key());
    return found == stacked_.end() ? nullptr : found->second.get();
  }

  /// Null for a tensor that stands by itself, or is not there.
  std::unique_ptr<const StackedTensor> find_stacked(const ModelConfig& config, TensorId id) const {
    auto part = stacked_part(id);
    if (!part || checkpoint_.find_stored(family_->tensor_name(id))) return nullptr;
    const auto stack = checkpoint_.find(part->stack);
    if (!stack) return nullptr;
    std::vector<std::int64_t> shape = expected_shape(config, id);
    const auto expected = stack_shape(*part, shape, config.num_experts);
    if (stack->shape != expected) {
      throw Error(
          "{}: tensor {} has shape {}, expected {}: {} experts, whose {} is {} of config.json",
          stack->file, quote(stack->name), shape_text(stack->shape), shape_text(expected),
          config.num_experts, to_string(id.role), expected_shape_fields(config, id));
    }
    return std::make_unique<const StackedTensor>(*stack, *std::move(part), std::move(shape));
  }

  /// What a checkpoint lacks: its own name where other experts have theirs, or the stack.
  std::string missing_name(TensorId id) const {
    const auto part = stacked_part(id);
    std::string first = family_->tensor_name({id.role, id.layer, id.expert < 0 ? -1 : 0});
    return part && !checkpoint_.find_stored(first) ? part->stack : family_->tensor_name(id);
  }

  TensorView find(const ModelConfig& config, TensorId id) const {
    const std::string name = family_->tensor_name(id);
    auto view = checkpoint_.find(name);
    // Tying goes both ways.
    if (!view && id.role == TensorRole::token_embedding && config.tied_embeddings)
      view = checkpoint_.find(family_->tensor_name({TensorRole::lm_head}));
    if (!view) refuse_missing(checkpoint_, config, missing_name(id));
    const auto expected = expected_shape(config, id);
    if (view->shape != expected) {
      throw Error("{}: tensor {} has shape {}, expected {} = {} of config.json", view->file,
                  quote(view->name), shape_text(view->shape), shape_text(expected),
                  expected_shape_fields(config, id));
    }
    return *std::move(view);
  }

  Checkpoint checkpoint_;
  const Family* family_;
  std::unordered_map<std::int64_t, TensorView> views_;
  std::unordered_map<std::int64_t, std::unique_ptr<const StackedTensor>> stacked_;
  std::unordered_map<std::int64_t, std::shared_ptr<const QuantizedTensor>> quantized_;
};

}  // namespace

Checkpoint Checkpoint::open(const ModelFiles& files) {
  Checkpoint checkpoint;
  if (auto single = files.map(kSingleFile)) {
    if (files.contains(kIndexFile) && is_first_time(single->path() + " index")) {
      logger().warn("{} counts, not the shards of {}, as in Transformers", single->path(),
                    files.path(kIndexFile));
    }
    checkpoint = of(Safetensors::parse(*std::move(single)));
  } else if (const auto index = files.read(kIndexFile)) {
    checkpoint.path_ = files.path(kIndexFile);
    checkpoint.open_shards(files, *index);
  } else {
    no_weights(files);
  }
  return checkpoint;
}

Checkpoint Checkpoint::of(Safetensors file) {
  Checkpoint checkpoint;
  checkpoint.path_ = file.path();
  checkpoint.shards_.push_back(std::make_unique<const Safetensors>(std::move(file)));
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
    weight_map_.emplace(tensor, shard->second);
  }
}

const Safetensors* Checkpoint::file_of(std::string_view name) const {
  if (shards_.size() == 1 && weight_map_.empty()) {
    return shards_.front()->tensors().contains(name) ? shards_.front().get() : nullptr;
  }
  const auto has_it = [&](const Safetensors& shard) { return shard.tensors().contains(name); };
  const auto named = weight_map_.find(name);
  if (named != weight_map_.end() && has_it(*named->second)) return named->second;
  const auto found = std::find_if(shards_.begin(), shards_.end(),
                                  [&](const auto& shard) { return has_it(*shard); });
  return found == shards_.end() ? nullptr : found->get();
}

void Checkpoint::refuse_wrong_index(std::string_view name) const {
  const auto named = weight_map_.find(name);
  if (named == weight_map_.end()) return;
  throw Error("{}: tensor {} is missing; {} says that it is here: get both again",
              named->second->path(), quote(name), path_);
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

std::optional<std::pair<const Safetensors*, std::string>> Checkpoint::place_of(
    const std::string& usual_name) const {
  const bool prefixed = usual_name.starts_with(kPrefix);
  const std::array<std::string, 3> candidates = {
      usual_name, prefixed ? usual_name.substr(kPrefix.size()) : usual_name,
      std::string(kPrefix) + usual_name};
  for (const std::string& name : candidates) {
    if (const Safetensors* file = file_of(name)) return std::pair(file, name);
  }
  for (const std::string& name : candidates) refuse_wrong_index(name);
  return std::nullopt;
}

std::optional<TensorView> Checkpoint::find(const std::string& usual_name) const {
  const auto place = place_of(usual_name);
  if (!place) return std::nullopt;
  return place->first->view(place->second);
}

std::optional<StoredTensor> Checkpoint::find_stored(const std::string& usual_name) const {
  const auto place = place_of(usual_name);
  if (!place) return std::nullopt;
  return place->first->stored(place->second);
}

std::shared_ptr<const WeightSource> open_weights(const ModelFiles& files, ModelConfig& config) {
  Checkpoint checkpoint = Checkpoint::open(files);
  untie_differing_head(checkpoint, config);
  if (config.quantization && config.quantization->quantizes_activations &&
      is_first_time(checkpoint.path() + " activations")) {
    logger().warn(
        "{}: made for activations (or a KV cache) that are quantised, too; here they keep their "
        "precision",
        files.path("config.json"));
  }
  auto weights = std::make_shared<CheckpointWeights>(std::move(checkpoint), config);
  if (config.quantization) set_formats(*weights, config);
  return weights;
}

}  // namespace sluice
