#include "models/model.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "base/error.h"
#include "models/checkpoint.h"
#include "models/config_json.h"

namespace sluice {
namespace {

/// A shape's name where a folder is meant is an easy mistake.
void refuse_shape_name(const std::string& name) {
  std::error_code error;
  const auto& shapes = named_shapes();
  const bool is_shape = std::any_of(shapes.begin(), shapes.end(),
                                    [&](const NamedShape& shape) { return shape.name == name; });
  if (!is_shape || std::filesystem::exists(name, error)) return;
  throw Error(
      "'{}' is a shape without weights, and no folder; `sluice make-model` writes a model of it",
      name);
}

ModelConfig read_config(const ModelFiles& files) {
  const auto config = files.read("config.json");
  if (!config) throw Error("'{}' holds no config.json: is it a Hugging Face folder?", files.root());
  return parse_config(*config, files.path("config.json"));
}

/// The formats that config.json alone tells of.
class ExpectedWeights final : public WeightSource {
 public:
  explicit ExpectedWeights(const ModelConfig& config) : config_(config) {}
  TensorView tensor(TensorId id) const override {
    throw Error("{} is asked for where only config.json is read", to_string(id.role));
  }
  WeightFormat format(TensorId id) const override { return expected_format(config_, id); }

 private:
  ModelConfig config_;
};

}  // namespace

ModelConfig read_model_config(const std::string& path_or_name) {
  refuse_shape_name(path_or_name);
  ModelConfig config = read_config(ModelFiles::open(path_or_name));
  if (config.quantization) set_formats(ExpectedWeights(config), config);
  return config;
}

Model open_model(const std::string& path_or_name) {
  refuse_shape_name(path_or_name);
  Model model;
  model.files = ModelFiles::open(path_or_name);
  model.name = path_or_name;
  model.config = read_config(model.files);
  // Without the file Transformers takes the fields from config.json.
  const std::string generation =
      model.files.contains("generation_config.json") ? "generation_config.json" : "config.json";
  model.generation =
      parse_generation_config(*model.files.read(generation), model.files.path(generation));
  model.weights = open_weights(model.files, model.config);
  return model;
}

bool names_model(const std::string& path_or_name) {
  std::error_code error;
  return path_or_name == "tiny" || path_or_name.find('/') != std::string::npos ||
         std::filesystem::is_directory(path_or_name, error);
}

}  // namespace sluice
