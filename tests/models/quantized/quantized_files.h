#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/model.h"
#include "models/quantized/quantized_tensor.h"
#include "tests/support/checkpoint_files.h"
#include "tests/support/temporary_folder.h"

namespace sluice::testing {

/// A quantised weight as a test has made it, to be written in a checkpoint's way and read again.
struct CodedWeight {
  std::int64_t out = 0;
  std::int64_t in = 0;
  WeightFormat format;
  CodedRows rows;

  std::uint8_t code(std::int64_t row, std::int64_t i) const { return rows.codes.at(row * in + i); }
  std::int64_t num_groups() const { return format.num_groups(in); }
  std::uint32_t scale(std::int64_t row, std::int64_t group) const {
    return rows.scales.at(row * num_groups() + group);
  }
  std::uint8_t zero_point(std::int64_t row, std::int64_t group) const {
    return format.has_zero_points ? rows.zero_points.at(row * num_groups() + group)
                                  : static_cast<std::uint8_t>(default_zero_point(format.codes));
  }
};

/// Drawn from the name: any codes, finite scales, zero points with the least and the largest.
CodedWeight random_coded(const std::string& name, const WeightFormat& format, std::int64_t out,
                         std::int64_t in);

/// The bytes of a list of integers, little-endian.
template <typename T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

/// Words of 4- or 8-bit codes, the first in the lowest bits.
std::vector<std::int32_t> pack_words(const std::vector<std::uint8_t>& codes, int bits);

/// "F16", "BF16", "F32".
std::string scale_dtype(const WeightFormat& format);
/// Scales [rows][columns] as that type has them.
std::string scale_bytes(const WeightFormat& format, const std::vector<std::uint32_t>& scales);

/// The parts that compressed-tensors writes for a module.
std::vector<TestTensor> compressed_tensors_parts(const std::string& module,
                                                 const CodedWeight& weight);
/// config_groups' entry for all linear layers.
nlohmann::json compressed_tensors_group(const WeightFormat& format);
/// A quantization_config with this one group, and lm_head left out.
nlohmann::json compressed_tensors_config(const WeightFormat& format);

/// What GPTQ's tools write: zero points less one without `is_v2`.
std::vector<TestTensor> gptq_parts(const std::string& module, const CodedWeight& weight,
                                   bool is_v2);
nlohmann::json gptq_config(const WeightFormat& format, bool is_v2);
/// What AutoAWQ writes.
std::vector<TestTensor> awq_parts(const std::string& module, const CodedWeight& weight);
nlohmann::json awq_config(const WeightFormat& format);
/// What DeepSeek publishes.
std::vector<TestTensor> fp8_parts(const std::string& module, const CodedWeight& weight);
nlohmann::json fp8_config();
/// What gpt-oss has: `name`_blocks and `name`_scales.
std::vector<TestTensor> mxfp4_parts(const std::string& name, const CodedWeight& weight);

/// How a method writes a module.
using PartsOf =
    std::function<std::vector<TestTensor>(const std::string& module, const CodedWeight& weight)>;

/// Writes a model's folder with its layers' linear weights quantised by the rules of quantize_rows,
/// in a method's way, and with the tokenizer that it has. With `format` the same, all methods hold
/// the same codes.
void write_quantized(const Model& model, const test::TemporaryFolder& folder,
                     const WeightFormat& format, const nlohmann::json& quantization,
                     const PartsOf& parts);

/// The config.json of a Llama with 2 layers: hidden 128, 8 heads of 16, 2 KV heads, FFN 256,
/// vocabulary 10.
nlohmann::json wide_llama();

/// Takes out the tensor of that name and returns its shape.
std::vector<std::int64_t> take_out(std::vector<TestTensor>& tensors, const std::string& name);
TestTensor& named(std::vector<TestTensor>& tensors, const std::string& name);
/// "model.layers.0.self_attn.q_proj" and all other linear modules of the layers.
std::vector<std::string> linear_modules(const std::vector<TestTensor>& tensors);

/// A model's folder.
class ModelFolder {
 public:
  void write(const nlohmann::json& config, const std::vector<TestTensor>& tensors) const {
    folder_.write("config.json", config.dump());
    folder_.write("model.safetensors", safetensors(tensors));
  }
  Model open() const { return open_model(folder_.path().string()); }
  const test::TemporaryFolder& folder() const { return folder_; }

 private:
  test::TemporaryFolder folder_;
};

/// Expects the tensor's codes, scales and zero points to be these, read in bands of 7 rows.
void expect_coded(const QuantizedTensor& tensor, const CodedWeight& expected);

}  // namespace sluice::testing
