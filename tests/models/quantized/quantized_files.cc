#include "tests/models/quantized/quantized_files.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <utility>

#include "models/config_json.h"
#include "models/family.h"
#include "models/new_folder.h"
#include "models/quantized/method.h"
#include "models/quantized/quantize_rows.h"

namespace sluice::testing {

using nlohmann::json;
using Codes = WeightFormat::Codes;
using Scales = WeightFormat::Scales;

namespace {

std::uint32_t random_scale(Scales scales, std::mt19937& random) {
  const auto bits = static_cast<std::uint32_t>(random());
  switch (scales) {
    case Scales::f16:
      return bits & 0xbbffU;
    case Scales::bf16:
      return bits & 0xbfffU;
    case Scales::e8m0:
      return bits % 255;
    default:
      return bits & 0xbfffffffU;
  }
}

}  // namespace

CodedWeight random_coded(const std::string& name, const WeightFormat& format, std::int64_t out,
                         std::int64_t in) {
  std::mt19937 random(static_cast<std::uint32_t>(std::hash<std::string>()(name)));
  CodedWeight weight{.out = out, .in = in, .format = format, .rows = {}};
  weight.rows.resize(format, out, in);
  const int bits = format.bits_per_code();
  const auto code = [&] { return static_cast<std::uint8_t>(random() & ((1U << bits) - 1)); };
  std::generate(weight.rows.codes.begin(), weight.rows.codes.end(), code);
  for (std::uint32_t& scale : weight.rows.scales) scale = random_scale(format.scales, random);
  std::generate(weight.rows.zero_points.begin(), weight.rows.zero_points.end(), code);
  if (format.has_zero_points && weight.rows.zero_points.size() > 1) {
    weight.rows.zero_points.front() = 0;
    weight.rows.zero_points.back() = static_cast<std::uint8_t>((1U << bits) - 1);
  }
  // A block's rows share a scale.
  const std::int64_t groups = weight.num_groups();
  for (std::int64_t row = 0; row < out; ++row) {
    const std::int64_t first = row / format.group_rows * format.group_rows;
    std::copy_n(weight.rows.scales.begin() + first * groups, groups,
                weight.rows.scales.begin() + row * groups);
  }
  return weight;
}

std::vector<std::int32_t> pack_words(const std::vector<std::uint8_t>& codes, int bits) {
  const std::size_t in_word = 32U / static_cast<std::size_t>(bits);
  std::vector<std::int32_t> words((codes.size() + in_word - 1) / in_word);
  for (std::size_t i = 0; i < codes.size(); ++i) {
    const std::uint32_t shifted = std::uint32_t{codes[i]} << (i % in_word * bits);
    words[i / in_word] =
        static_cast<std::int32_t>(static_cast<std::uint32_t>(words[i / in_word]) | shifted);
  }
  return words;
}

std::string scale_dtype(const WeightFormat& format) {
  switch (format.scales) {
    case Scales::f16:
      return "F16";
    case Scales::bf16:
      return "BF16";
    case Scales::e8m0:
      return "U8";
    default:
      return "F32";
  }
}

std::string scale_bytes(const WeightFormat& format, const std::vector<std::uint32_t>& scales) {
  std::string bytes;
  for (const std::uint32_t scale : scales)
    bytes.append(reinterpret_cast<const char*>(&scale), size_bytes(format.scales));
  return bytes;
}

std::vector<TestTensor> compressed_tensors_parts(const std::string& module,
                                                 const CodedWeight& weight) {
  const WeightFormat& format = weight.format;
  const int bits = format.bits_per_code();
  const std::int64_t groups = weight.num_groups();
  std::vector<TestTensor> parts;
  if (format.codes == Codes::fp8) {
    parts.push_back(
        {module + ".weight", "F8_E4M3", {weight.out, weight.in}, bytes_of(weight.rows.codes)});
  } else {
    std::string packed;
    std::int64_t words = 0;
    for (std::int64_t row = 0; row < weight.out; ++row) {
      const auto first = weight.rows.codes.begin() + row * weight.in;
      const auto of_row = pack_words({first, first + weight.in}, bits);
      words = static_cast<std::int64_t>(of_row.size());
      packed += bytes_of(of_row);
    }
    parts.push_back({module + ".weight_packed", "I32", {weight.out, words}, packed});
    parts.push_back({module + ".weight_shape",
                     "I64",
                     {2},
                     bytes_of(std::vector<std::int64_t>{weight.out, weight.in})});
  }
  std::vector<std::uint32_t> scales;
  std::int64_t scale_rows = 0;
  for (std::int64_t row = 0; row < weight.out; row += format.group_rows, ++scale_rows) {
    for (std::int64_t group = 0; group < groups; ++group)
      scales.push_back(weight.scale(row, group));
  }
  parts.push_back({module + ".weight_scale",
                   scale_dtype(format),
                   {scale_rows, groups},
                   scale_bytes(format, scales)});
  if (format.has_zero_points) {
    // Words of neighbouring rows: pack each column, then turn.
    std::vector<std::vector<std::int32_t>> columns;
    for (std::int64_t group = 0; group < groups; ++group) {
      std::vector<std::uint8_t> column;
      for (std::int64_t row = 0; row < weight.out; ++row)
        column.push_back(weight.zero_point(row, group));
      columns.push_back(pack_words(column, bits));
    }
    std::vector<std::int32_t> words;
    for (std::size_t word = 0; word < columns.front().size(); ++word) {
      for (const auto& column : columns) words.push_back(column[word]);
    }
    parts.push_back({module + ".weight_zero_point",
                     "I32",
                     {static_cast<std::int64_t>(columns.front().size()), groups},
                     bytes_of(words)});
  }
  return parts;
}

json compressed_tensors_group(const WeightFormat& format) {
  const bool is_float = format.codes == Codes::fp8;
  json weights = {{"num_bits", format.bits_per_code()},
                  {"type", is_float ? "float" : "int"},
                  {"symmetric", !format.has_zero_points},
                  {"strategy", format.group_rows != 1 ? "block"
                               : format.group == 0    ? "channel"
                                                      : "group"}};
  if (format.group_rows != 1) {
    weights["block_structure"] = {128, 128};
  } else if (format.group != 0) {
    weights["group_size"] = format.group;
  }
  return {{"targets", {"Linear"}}, {"weights", weights}, {"input_activations", nullptr}};
}

json compressed_tensors_config(const WeightFormat& format) {
  return {{"quant_method", "compressed-tensors"},
          {"format", format.codes == Codes::fp8 ? "float-quantized" : "pack-quantized"},
          {"quantization_status", "compressed"},
          {"config_groups", {{"group_0", compressed_tensors_group(format)}}},
          {"ignore", {"lm_head"}}};
}

std::vector<TestTensor> gptq_parts(const std::string& module, const CodedWeight& weight,
                                   bool is_v2) {
  const int bits = weight.format.bits_per_code();
  const std::int64_t in_word = 32 / bits;
  const std::int64_t groups = weight.num_groups();
  const std::int64_t group = weight.format.group == 0 ? weight.in : weight.format.group;
  std::vector<std::int32_t> words(static_cast<std::size_t>(weight.in / in_word * weight.out));
  for (std::int64_t row = 0; row < weight.out; ++row) {
    const auto first = weight.rows.codes.begin() + row * weight.in;
    const auto of_row = pack_words({first, first + weight.in}, bits);
    for (std::size_t i = 0; i < of_row.size(); ++i)
      words[i * static_cast<std::size_t>(weight.out) + static_cast<std::size_t>(row)] = of_row[i];
  }
  std::vector<std::int32_t> zeros;
  std::vector<std::uint32_t> scales;
  for (std::int64_t g = 0; g < groups; ++g) {
    std::vector<std::uint8_t> of_group;
    for (std::int64_t row = 0; row < weight.out; ++row) {
      of_group.push_back(weight.zero_point(row, g));
      scales.push_back(weight.scale(row, g));
    }
    for (const std::int32_t word : pack_words(of_group, bits)) {
      const std::uint32_t less = is_v2 ? 0U : bits == 4 ? 0x11111111U : 0x01010101U;
      zeros.push_back(static_cast<std::int32_t>(static_cast<std::uint32_t>(word) - less));
    }
  }
  std::vector<std::int32_t> order;
  for (std::int64_t i = 0; i < weight.in; ++i)
    order.push_back(static_cast<std::int32_t>(i / group));
  return {{module + ".qweight", "I32", {weight.in / in_word, weight.out}, bytes_of(words)},
          {module + ".qzeros", "I32", {groups, weight.out / in_word}, bytes_of(zeros)},
          {module + ".scales",
           scale_dtype(weight.format),
           {groups, weight.out},
           scale_bytes(weight.format, scales)},
          {module + ".g_idx", "I32", {weight.in}, bytes_of(order)}};
}

json gptq_config(const WeightFormat& format, bool is_v2) {
  return {{"quant_method", "gptq"},
          {"bits", format.bits_per_code()},
          {"group_size", format.group == 0 ? -1 : format.group},
          {"desc_act", false},
          {"sym", !format.has_zero_points},
          {"checkpoint_format", is_v2 ? "gptq_v2" : "gptq"}};
}

std::vector<TestTensor> awq_parts(const std::string& module, const CodedWeight& weight) {
  static constexpr std::int64_t order[8] = {0, 2, 4, 6, 1, 3, 5, 7};
  const auto pack = [](const auto& code, std::int64_t rows, std::int64_t columns) {
    std::vector<std::uint32_t> words;
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t column = 0; column < columns; column += 8) {
        std::uint32_t word = 0;
        for (int place = 0; place < 8; ++place)
          word |= std::uint32_t{code(row, column + order[place])} << (4 * place);
        words.push_back(word);
      }
    }
    return bytes_of(words);
  };
  const std::int64_t groups = weight.num_groups();
  std::vector<std::uint32_t> scales;
  for (std::int64_t g = 0; g < groups; ++g) {
    for (std::int64_t row = 0; row < weight.out; ++row) scales.push_back(weight.scale(row, g));
  }
  return {{module + ".qweight",
           "I32",
           {weight.in, weight.out / 8},
           pack([&](std::int64_t i, std::int64_t row) { return weight.code(row, i); }, weight.in,
                weight.out)},
          {module + ".qzeros",
           "I32",
           {groups, weight.out / 8},
           pack([&](std::int64_t g, std::int64_t row) { return weight.zero_point(row, g); }, groups,
                weight.out)},
          {module + ".scales",
           scale_dtype(weight.format),
           {groups, weight.out},
           scale_bytes(weight.format, scales)}};
}

json awq_config(const WeightFormat& format) {
  return {{"quant_method", "awq"},
          {"bits", 4},
          {"group_size", format.group == 0 ? -1 : format.group},
          {"version", "gemm"},
          {"zero_point", true}};
}

std::vector<TestTensor> fp8_parts(const std::string& module, const CodedWeight& weight) {
  auto parts = compressed_tensors_parts(module, weight);
  parts.back().name = module + ".weight_scale_inv";
  return parts;
}

json fp8_config() {
  return {{"quant_method", "fp8"},
          {"fmt", "e4m3"},
          {"activation_scheme", "dynamic"},
          {"weight_block_size", {128, 128}}};
}

std::vector<TestTensor> mxfp4_parts(const std::string& name, const CodedWeight& weight) {
  std::string blocks;
  for (std::size_t i = 0; i < weight.rows.codes.size(); i += 2)
    blocks += static_cast<char>(weight.rows.codes[i] | weight.rows.codes[i + 1] << 4);
  const std::int64_t groups = weight.num_groups();
  return {{name + "_blocks", "U8", {weight.out, groups, 16}, blocks},
          {name + "_scales",
           "U8",
           {weight.out, groups},
           scale_bytes(weight.format, weight.rows.scales)}};
}

void write_quantized(const Model& model, const test::TemporaryFolder& folder,
                     const WeightFormat& format, const json& quantization, const PartsOf& parts) {
  const Family& family = *find_family(model.config.family);
  std::vector<TestTensor> tensors;
  for (const TensorId id : expected_tensors(model.config)) {
    const TensorView view = model.weights->tensor(id);
    const std::string name = family.tensor_name(id);
    if (id.layer < 0 || module_class(id.role) != "Linear") {
      const auto* bytes = reinterpret_cast<const char*>(view.data.data());
      tensors.push_back({name, std::string(safetensors_name(view.dtype)), view.shape,
                         std::string(bytes, view.data.size())});
      continue;
    }
    CodedWeight weight{.out = view.shape[0], .in = view.shape[1], .format = format, .rows = {}};
    std::vector<float> values(static_cast<std::size_t>(weight.out * weight.in));
    read_floats(view, 0, values.size(), values.data());
    quantize_rows(format, weight.in, values, ScaleSearch::none, weight.rows);
    for (TestTensor& part : parts(module_of(name), weight)) tensors.push_back(std::move(part));
  }
  json config = json::parse(config_json(model.config));
  config["quantization_config"] = quantization;
  folder.write("config.json", config.dump());
  folder.write("model.safetensors", safetensors(tensors));
  for (const char* file : {"generation_config.json", "tokenizer.json", "tokenizer_config.json"}) {
    if (const auto text = model.files.read(file)) folder.write(file, *text);
  }
}

json wide_llama() {
  json config = small_llama();
  config["hidden_size"] = 128;
  config["num_attention_heads"] = 8;
  config["intermediate_size"] = 256;
  return config;
}

TestTensor& named(std::vector<TestTensor>& tensors, const std::string& name) {
  const auto found = std::find_if(tensors.begin(), tensors.end(),
                                  [&](const TestTensor& tensor) { return tensor.name == name; });
  if (found == tensors.end()) throw std::out_of_range(name);
  return *found;
}

std::vector<std::int64_t> take_out(std::vector<TestTensor>& tensors, const std::string& name) {
  auto shape = named(tensors, name).shape;
  std::erase_if(tensors, [&](const TestTensor& tensor) { return tensor.name == name; });
  return shape;
}

std::vector<std::string> linear_modules(const std::vector<TestTensor>& tensors) {
  std::vector<std::string> modules;
  for (const TestTensor& tensor : tensors) {
    const std::string_view name = tensor.name;
    if (name.find("_proj.weight") == std::string_view::npos) continue;
    modules.emplace_back(name.substr(0, name.size() - std::string_view(".weight").size()));
  }
  return modules;
}

void expect_coded(const QuantizedTensor& tensor, const CodedWeight& expected) {
  ASSERT_EQ(tensor.shape(), (std::vector<std::int64_t>{expected.out, expected.in}));
  EXPECT_EQ(to_string(tensor.format()), to_string(expected.format)) << tensor.name();
  ASSERT_EQ(tensor.format(), expected.format) << tensor.name();
  CodedRows all;
  CodedRows band;
  for (std::int64_t row = 0; row < expected.out; row += 7) {
    tensor.read(row, std::min<std::int64_t>(7, expected.out - row), band);
    all.codes.insert(all.codes.end(), band.codes.begin(), band.codes.end());
    all.scales.insert(all.scales.end(), band.scales.begin(), band.scales.end());
    all.zero_points.insert(all.zero_points.end(), band.zero_points.begin(), band.zero_points.end());
  }
  EXPECT_EQ(all.codes, expected.rows.codes) << tensor.name();
  EXPECT_EQ(all.scales, expected.rows.scales) << tensor.name();
  EXPECT_EQ(all.zero_points, expected.rows.zero_points) << tensor.name();
}

}  // namespace sluice::testing
