#include "engine/machine/calibration_store.h"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <iterator>
#include <utility>

#include "base/cpu.h"
#include "base/environment.h"
#include "base/error.h"
#include "base/files.h"
#include "codelets/kernels/generation.h"
#include "codelets/weights/plain.h"
#include "perfmodels/calibration_transfer.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

/// Lower-case letters and digits, with single hyphens for everything else.
std::string file_name_of(const std::string& text) {
  std::string name;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80 && std::isalnum(byte) != 0) {
      name += static_cast<char>(std::tolower(byte));
    } else if (!name.empty() && name.back() != '-') {
      name += '-';
    }
  }
  while (!name.empty() && name.back() == '-') name.pop_back();
  return name.empty() ? "unknown" : name;
}

}  // namespace

std::uint32_t checksum(const std::string& text) {
  std::uint32_t sum = 2166136261U;
  for (const char c : text) sum = (sum ^ static_cast<unsigned char>(c)) * 16777619U;
  return sum;
}

fs::path calibration_folder(const CalibrationSetup& setup) {
  return fs::path(environment().data_dir) / "calibration" /
         fmt::format("{}-{}-cores-{}-kernels-{}", file_name_of(setup.cpu), setup.cores,
                     file_name_of(setup.isa), kernel_generation);
}

CalibrationSetup calibration_setup(DType dtype, int threads, std::string device,
                                   std::string cpu_plan) {
  const CpuTopology topology = read_cpu_topology();
  return {.cpu = topology.model_name.empty() ? "unknown" : topology.model_name,
          .cores = static_cast<std::int64_t>(topology.cores.size()),
          .threads = threads,
          .isa = onednn_isa_name(),
          .dtype = std::string(to_string(dtype)),
          .device = std::move(device),
          .cpu_plan = std::move(cpu_plan)};
}

fs::path calibration_path(const CalibrationSetup& setup, const ModelDimensions& whole_model) {
  const ModelDimensions model = measured_form(whole_model);
  std::string name = fmt::format("hidden{}-heads{}x{}x{}-ffn{}{}-vocab{}", model.hidden_size,
                                 model.num_heads, model.num_kv_heads, model.head_dim,
                                 model.ffn_size, model.gated_ffn ? "g" : "", model.vocab_size);
  if (model.embed_size != model.hidden_size) name += fmt::format("-embed{}", model.embed_size);
  if (model.sliding_window_tokens > 0)
    name += fmt::format("-window{}", model.sliding_window_tokens);
  if (model.num_experts > 0)
    name += fmt::format("-experts{}of{}", model.experts_per_token, model.num_experts);
  if (model.shared_ffn_size > 0) name += fmt::format("-shared{}", model.shared_ffn_size);
  if (model.weight_bits < 16) name += fmt::format("-{}bits", model.weight_bits);
  if (model.head_bits > 0) name += fmt::format("-head{}bits", model.head_bits);
  name += fmt::format("-{}-threads{}", setup.dtype, setup.threads);
  if (!setup.device.empty()) name += "-on-" + file_name_of(setup.device);
  if (!setup.cpu_plan.empty()) name += fmt::format("-plan-{:08x}", checksum(setup.cpu_plan));
  return calibration_folder(setup) / (name + ".json");
}

namespace {

Calibration read_calibration_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file) throw Error("cannot read {}", path.string());
  return parse_calibration(text, path.string());
}

/// Whether an iteration finds few of its weights in a cache that another has left.
bool exceeds_caches(const ModelDimensions& model) {
  const auto num_layers = static_cast<double>(std::max<std::int64_t>(1, model.num_layers));
  const double weights = num_layers * layer_weight_bytes(model);
  return weights > 2 * static_cast<double>(read_cpu_topology().last_level_cache_bytes);
}

}  // namespace

std::optional<Calibration> read_calibration(const CalibrationSetup& setup,
                                            const ModelDimensions& model) {
  const fs::path path = calibration_path(setup, model);
  std::error_code error;
  if (!fs::exists(path, error)) return std::nullopt;
  Calibration calibration = read_calibration_file(path);
  if (calibration.setup != setup || !same_layers(calibration.model, model)) {
    throw Error("{}: is of another machine or model; remove it, or measure again with --force",
                path.string());
  }
  return calibration;
}

std::optional<Calibration> nearest_calibration(const CalibrationSetup& setup,
                                               const ModelDimensions& model) {
  if (!exceeds_caches(model)) return std::nullopt;
  std::optional<Calibration> nearest;
  for (const fs::path& path : stored_calibrations(setup)) {
    try {
      Calibration found = read_calibration_file(path);
      if (found.setup != setup || !found.complete() || !exceeds_caches(found.model) ||
          !transferable(found.model, model))
        continue;
      if (!nearest || layer_distance(found.model, model) < layer_distance(nearest->model, model))
        nearest = std::move(found);
    } catch (const Error& error) {
      fmt::print(stderr, "sluice: {}; going on without it\n", error.what());
    }
  }
  return nearest;
}

void write_calibration(const Calibration& calibration) {
  const fs::path path = calibration_path(calibration.setup, calibration.model);
  if (const std::error_code error = make_private_folders(path.parent_path()))
    throw Error("cannot make {}: {}", path.parent_path().string(), error.message());
  write_file(path.string(), format_calibration(calibration));
}

std::vector<fs::path> stored_calibrations(const CalibrationSetup& setup) {
  std::vector<fs::path> paths;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(calibration_folder(setup), error)) {
    if (entry.path().extension() == ".json") paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

}  // namespace sluice
