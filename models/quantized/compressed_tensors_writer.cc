#include "models/quantized/compressed_tensors_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "models/config_json.h"
#include "models/family.h"
#include "models/new_folder.h"
#include "models/quantized/method.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;
using Codes = WeightFormat::Codes;

/// Files of a model's folder that have nothing to do with its weights.
constexpr const char* other_files[] = {"generation_config.json",
                                       "tokenizer.json",
                                       "tokenizer_config.json",
                                       "tokenizer.model",
                                       "vocab.json",
                                       "merges.txt",
                                       "added_tokens.json",
                                       "special_tokens_map.json",
                                       "chat_template.jinja",
                                       "chat_template.json"};

/// A router stays as it is: it is small, and another choice of experts is another result.
bool is_of_layers(TensorRole role) {
  return module_class(role) == "Linear" && role != TensorRole::lm_head &&
         role != TensorRole::router_weight && role != TensorRole::project_in &&
         role != TensorRole::project_out;
}

/// The format that a tensor gets; nothing where it stays as it is.
std::optional<WeightFormat> new_format(const QuantizeModelOptions& options, TensorRole role) {
  std::optional<WeightFormat> format;
  if (role == TensorRole::lm_head) {
    format = options.head;
  } else if (is_of_layers(role) &&
             std::find(options.keep.begin(), options.keep.end(), role) == options.keep.end()) {
    format = options.layers;
  }
  return format && !format->is_plain() ? format : std::nullopt;
}

/// All tensors of the new model: with a head of its own where that is quantised.
std::vector<TensorId> new_tensors(const ModelConfig& config, const QuantizeModelOptions& options) {
  auto ids = expected_tensors(config);
  if (config.tied_embeddings && new_format(options, TensorRole::lm_head))
    ids.push_back({TensorRole::lm_head});
  return ids;
}

/// Where the values of a new tensor are.
TensorId source_of(const ModelConfig& config, TensorId id) {
  const bool is_tied_head = id.role == TensorRole::lm_head && config.tied_embeddings;
  return is_tied_head ? TensorId{TensorRole::token_embedding} : id;
}

// --- config.json

ordered_json weights_json(const WeightFormat& format) {
  ordered_json weights;
  weights["num_bits"] = format.bits_per_code();
  weights["type"] = format.codes == Codes::fp8 ? "float" : "int";
  weights["symmetric"] = !format.has_zero_points;
  weights["strategy"] = format.group_rows != 1 ? "block" : format.group == 0 ? "channel" : "group";
  if (format.group_rows != 1) {
    weights["block_structure"] = {format.group_rows, format.group};
  } else if (format.group != 0) {
    weights["group_size"] = format.group;
  }
  weights["dynamic"] = false;
  return weights;
}

const char* layout_name(const WeightFormat& format) {
  return format.codes == Codes::fp8 ? "float-quantized" : "pack-quantized";
}

ordered_json group_json(const WeightFormat& format, const char* target) {
  ordered_json group;
  group["targets"] = {target};
  group["weights"] = weights_json(format);
  group["input_activations"] = nullptr;
  group["output_activations"] = nullptr;
  group["format"] = layout_name(format);
  return group;
}

ordered_json quantization_json(const ModelConfig& config, const QuantizeModelOptions& options) {
  const auto head = new_format(options, TensorRole::lm_head);
  ordered_json quantization;
  quantization["quant_method"] = "compressed-tensors";
  quantization["quantization_status"] = "compressed";
  ordered_json& groups = quantization["config_groups"];
  std::set<std::string> layouts;
  if (!options.layers.is_plain()) {
    groups["group_0"] = group_json(options.layers, "Linear");
    layouts.insert(layout_name(options.layers));
  }
  if (head && *head != options.layers) {
    groups[fmt::format("group_{}", groups.size())] = group_json(*head, "lm_head");
    layouts.insert(layout_name(*head));
  }
  quantization["format"] = layouts.size() == 1 ? *layouts.begin() : "mixed-precision";
  ordered_json& ignored = quantization["ignore"];
  ignored = ordered_json::array();
  const Family& family = *find_family(config.family);
  for (const TensorId id : expected_tensors(config)) {
    if (module_class(id.role) == "Linear" && !new_format(options, id.role))
      ignored.push_back(module_of(family.tensor_name(id)));
  }
  if (config.tied_embeddings && !head) ignored.push_back("lm_head");
  return quantization;
}

std::string new_config(const Model& model, const QuantizeModelOptions& options) {
  std::optional<std::string> text;
  if (!model.files.root().empty()) text = model.files.read("config.json");
  ordered_json fields =
      parse_ordered_json(text ? quote_non_finite(*text) : config_json(model.config), "config.json");
  if (new_format(options, TensorRole::lm_head)) fields["tie_word_embeddings"] = false;
  fields["quantization_config"] = quantization_json(model.config, options);
  return json_text(fields, 2) + "\n";
}

// --- What is written where

std::int64_t words_of(std::int64_t count, int bits) { return (count * bits + 31) / 32; }

NewTensor part(TensorId id, std::string name, std::string dtype, std::vector<std::int64_t> shape,
               std::size_t element_bytes) {
  std::uint64_t bytes = element_bytes;
  for (const std::int64_t size : shape) bytes *= static_cast<std::uint64_t>(size);
  return {.id = id,
          .name = std::move(name),
          .dtype = std::move(dtype),
          .shape = std::move(shape),
          .bytes = bytes};
}

std::string scales_dtype(const WeightFormat& format) {
  return format.scales == WeightFormat::Scales::bf16  ? "BF16"
         : format.scales == WeightFormat::Scales::f16 ? "F16"
                                                      : "F32";
}

/// The parts of a weight [out, in] of this format.
std::vector<NewTensor> parts_of(TensorId id, const std::string& module, const WeightFormat& format,
                                std::int64_t out, std::int64_t in) {
  const int bits = format.bits_per_code();
  const std::int64_t groups = format.num_groups(in);
  const std::int64_t scale_rows = (out + format.group_rows - 1) / format.group_rows;
  std::vector<NewTensor> parts;
  if (format.codes == Codes::fp8) {
    parts.push_back(part(id, module + ".weight", "F8_E4M3", {out, in}, 1));
  } else {
    parts.push_back(part(id, module + ".weight_packed", "I32", {out, words_of(in, bits)}, 4));
    parts.push_back(part(id, module + ".weight_shape", "I64", {2}, 8));
  }
  parts.push_back(part(id, module + ".weight_scale", scales_dtype(format), {scale_rows, groups},
                       size_bytes(format.scales)));
  if (format.has_zero_points) {
    parts.push_back(
        part(id, module + ".weight_zero_point", "I32", {words_of(out, bits), groups}, 4));
  }
  return parts;
}

/// Refuses what the rules cannot quantise, before anything is written.
void check_group(const WeightFormat& format, const std::string& name, std::int64_t in) {
  if (format.codes == Codes::fp8 || format.group == 0 || in % format.group == 0) return;
  throw Error(
      "{} has {} inputs, which groups of {} do not divide; choose another group than that of {}, "
      "or keep this weight as it is",
      name, in, format.group, to_string(format));
}

std::vector<NewShard> plan_shards(const Model& model, const QuantizeModelOptions& options) {
  const Family& family = *find_family(model.config.family);
  std::vector<NewShard> shards(1);
  for (const TensorId id : new_tensors(model.config, options)) {
    const std::string name = family.tensor_name(id);
    std::vector<NewTensor> parts;
    if (const auto format = new_format(options, id.role)) {
      const auto shape = expected_shape(model.config, id);
      check_group(*format, name, shape[1]);
      parts = parts_of(id, module_of(name), *format, shape[0], shape[1]);
    } else {
      const TensorView view = model.weights->tensor(id);
      parts = {part(id, name, std::string(safetensors_name(view.dtype)), view.shape,
                    size_bytes(view.dtype))};
    }
    std::uint64_t bytes = 0;
    for (const NewTensor& each : parts) bytes += each.bytes;
    NewShard* shard = &shards.back();
    if (shard->bytes > 0 && shard->bytes + bytes > options.largest_shard_bytes)
      shard = &shards.emplace_back();
    shard->bytes += bytes;
    std::move(parts.begin(), parts.end(), std::back_inserter(shard->tensors));
  }
  for (NewShard& shard : shards) shard.lay_out();
  return shards;
}

// --- Writing

/// Runs `work(i)` for each i below `count` on several threads, this one among them. What one throws
/// is thrown here once all have stopped. After each of its own this thread calls `report`.
void run_on_threads(int num_threads, std::int64_t count,
                    const std::function<void(std::int64_t)>& work,
                    const std::function<void()>& report) {
  std::atomic<std::int64_t> next = 0;
  std::mutex mutex;
  std::exception_ptr failure;
  const auto run = [&](bool is_caller) {
    try {
      for (std::int64_t i = next++; i < count; i = next++) {
        work(i);
        if (is_caller) report();
      }
    } catch (...) {
      next = count;
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> helpers;
    for (int i = 1; i < std::min<std::int64_t>(num_threads, count); ++i)
      helpers.emplace_back(run, false);
    run(true);
  }
  if (failure) std::rethrow_exception(failure);
}

/// Two codes a byte, the first in its low half; `out` holds zeros.
void pack_nibbles(const std::uint8_t* codes, std::int64_t count, std::byte* out) {
  for (std::int64_t i = 0; i < count; ++i)
    out[i / 2] |= static_cast<std::byte>(codes[i] << (i % 2 * 4));
}

/// Writes the tensors of one shard, which outlives it, and keeps the books.
class ShardWriter {
 public:
  ShardWriter(const Model& model, const QuantizeModelOptions& options, const fs::path& path,
              const NewShard& shard)
      : model_(model), options_(options), file_(path) {
    const std::string header = safetensors_header(shard);
    data_offset_ = header.size();
    file_.write(header);
    for (const NewTensor& tensor : shard.tensors) by_name_.emplace(tensor.name, &tensor);
  }

  /// `report` hears of bytes that are done.
  void write_plain(const NewTensor& tensor, const std::function<void(std::uint64_t)>& report) {
    const TensorView view = model_.weights->tensor(tensor.id);
    constexpr std::size_t piece = std::size_t{4} << 20;
    for (std::size_t done = 0; done < view.data.size(); done += piece) {
      const auto some = view.data.subspan(done, std::min(piece, view.data.size() - done));
      file_.write_at(data_offset_ + tensor.position + done, some);
      report(some.size());
    }
    model_.weights->release(tensor.id);
  }

  void write_quantized(TensorId id, const std::string& module, const WeightFormat& format,
                       QuantizedRole& books, const std::function<void(std::uint64_t)>& report) {
    const TensorId source = source_of(model_.config, id);
    const TensorView view = model_.weights->tensor(source);
    const std::int64_t out = view.shape[0];
    const std::int64_t in = view.shape[1];
    // Whole words of zero points, whole blocks, and about a MiB of floats.
    constexpr std::int64_t band_values = 1 << 18;
    const std::int64_t step = format.group_rows != 1 ? format.group_rows : 8;
    const std::int64_t band = std::max(step, band_values / in / step * step);
    const std::int64_t count = (out + band - 1) / band;
    const Parts parts = find_parts(module, format);
    const std::uint64_t bytes = parts.bytes();
    std::atomic<std::int64_t> done_bands = 0;
    std::uint64_t reported = 0;
    std::vector<double> errors(static_cast<std::size_t>(count));
    std::vector<double> squares(static_cast<std::size_t>(count));
    const auto report_done = [&](std::int64_t bands) {
      const std::uint64_t now =
          bytes * static_cast<std::uint64_t>(bands) / static_cast<std::uint64_t>(count);
      if (now > reported) report(now - reported);
      reported = std::max(reported, now);
    };
    run_on_threads(
        num_threads(), count,
        [&](std::int64_t index) {
          const std::int64_t first = index * band;
          const std::int64_t rows = std::min(band, out - first);
          std::vector<float> values(static_cast<std::size_t>(rows * in));
          read_floats(view, static_cast<std::size_t>(first * in), values.size(), values.data());
          CodedRows coded;
          quantize(view, format, first, values, coded);
          write_band(parts, format, first, rows, in, coded);
          errors[static_cast<std::size_t>(index)] = squared_error(format, in, values, coded);
          double sum = 0;
          for (const float value : values) sum += double{value} * double{value};
          squares[static_cast<std::size_t>(index)] = sum;
          ++done_bands;
        },
        [&] { report_done(done_bands); });
    if (parts.shape != nullptr) {
      const std::int64_t shape[2] = {out, in};
      write_at(*parts.shape, 0, std::as_bytes(std::span(shape)));
    }
    report_done(count);
    books.num_values += static_cast<std::uint64_t>(out * in);
    books.bytes += bytes - (parts.shape == nullptr ? 0 : parts.shape->bytes);
    for (const double error : errors) books.squared_error += error;
    for (const double square : squares) books.squared_values += square;
    model_.weights->release(source);
  }

  void close() { file_.close(); }

 private:
  struct Parts {
    const NewTensor* codes = nullptr;
    const NewTensor* scales = nullptr;
    const NewTensor* zero_points = nullptr;
    const NewTensor* shape = nullptr;
    std::uint64_t bytes() const {
      return codes->bytes + scales->bytes + (zero_points == nullptr ? 0 : zero_points->bytes) +
             (shape == nullptr ? 0 : shape->bytes);
    }
  };

  int num_threads() const {
    return options_.num_threads > 0
               ? options_.num_threads
               : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  }

  Parts find_parts(const std::string& module, const WeightFormat& format) const {
    const auto find = [&](const char* name) { return by_name_.at(module + name); };
    Parts parts;
    parts.scales = find(".weight_scale");
    if (format.has_zero_points) parts.zero_points = find(".weight_zero_point");
    if (format.codes == Codes::fp8) {
      parts.codes = find(".weight");
    } else {
      parts.codes = find(".weight_packed");
      parts.shape = find(".weight_shape");
    }
    return parts;
  }

  void quantize(const TensorView& view, const WeightFormat& format, std::int64_t first_row,
                std::span<const float> values, CodedRows& coded) const {
    try {
      quantize_rows(format, view.shape[1], values, options_.search, coded, first_row);
    } catch (const Error& error) {
      throw Error("{}: tensor {}: {}", view.file, quote(view.name), error.what());
    }
  }

  void write_at(const NewTensor& tensor, std::uint64_t offset,
                std::span<const std::byte> bytes) const {
    file_.write_at(data_offset_ + tensor.position + offset, bytes);
  }

  void write_band(const Parts& parts, const WeightFormat& format, std::int64_t first,
                  std::int64_t rows, std::int64_t in, const CodedRows& coded) const {
    const int bits = format.bits_per_code();
    const std::int64_t row_bytes = format.codes == Codes::fp8 ? in : 4 * words_of(in, bits);
    std::vector<std::byte> packed(static_cast<std::size_t>(rows * row_bytes));
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::uint8_t* codes = coded.codes.data() + row * in;
      std::byte* to = packed.data() + row * row_bytes;
      if (bits == 4) {
        pack_nibbles(codes, in, to);
      } else {
        std::memcpy(to, codes, static_cast<std::size_t>(in));
      }
    }
    write_at(*parts.codes, static_cast<std::uint64_t>(first * row_bytes), packed);
    write_scales(*parts.scales, format, first, rows, in, coded);
    if (format.has_zero_points) write_zero_points(parts, format, first, rows, in, coded);
  }

  void write_scales(const NewTensor& tensor, const WeightFormat& format, std::int64_t first,
                    std::int64_t rows, std::int64_t in, const CodedRows& coded) const {
    const std::int64_t groups = format.num_groups(in);
    const std::size_t size = size_bytes(format.scales);
    std::vector<std::byte> bytes;
    for (std::int64_t row = 0; row < rows; row += format.group_rows) {
      for (std::int64_t group = 0; group < groups; ++group) {
        const std::uint32_t scale = coded.scales[static_cast<std::size_t>(row * groups + group)];
        const auto* from = reinterpret_cast<const std::byte*>(&scale);  // little-endian
        bytes.insert(bytes.end(), from, from + size);
      }
    }
    const std::int64_t before = first / format.group_rows * groups;
    write_at(tensor, static_cast<std::uint64_t>(before) * size, bytes);
  }

  /// Words of neighbouring rows' zero points, a word for each group.
  void write_zero_points(const Parts& parts, const WeightFormat& format, std::int64_t first,
                         std::int64_t rows, std::int64_t in, const CodedRows& coded) const {
    const std::int64_t groups = format.num_groups(in);
    const int bits = format.bits_per_code();
    const std::int64_t in_word = 32 / bits;
    std::vector<std::uint32_t> words(
        static_cast<std::size_t>((rows + in_word - 1) / in_word * groups));
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t group = 0; group < groups; ++group) {
        const std::uint32_t zero =
            coded.zero_points[static_cast<std::size_t>(row * groups + group)];
        words[static_cast<std::size_t>(row / in_word * groups + group)] |=
            zero << (row % in_word * bits);
      }
    }
    write_at(*parts.zero_points, static_cast<std::uint64_t>(first / in_word * groups) * 4,
             std::as_bytes(std::span(words)));
  }

  const Model& model_;
  const QuantizeModelOptions& options_;
  NewFile file_;
  std::uint64_t data_offset_ = 0;
  std::map<std::string, const NewTensor*, std::less<>> by_name_;
};

void check_model(const Model& model, const QuantizeModelOptions& options) {
  if (model.config.quantization) {
    throw Error("'{}' is quantised already (quant_method {}); give the model in bf16, f16 or f32",
                model.name, quote(model.config.quantization->method));
  }
  if (find_family(model.config.family) == nullptr) config_json(model.config);  // says why not
  const auto ids = new_tensors(model.config, options);
  for (const TensorId id : ids) {
    if (const auto format = new_format(options, id.role)) check_quantizes_to(*format);
  }
  if (std::none_of(ids.begin(), ids.end(),
                   [&](TensorId id) { return new_format(options, id.role).has_value(); })) {
    throw Error(
        "no weight would be quantised; choose a format for the layers or the head, and "
        "keep fewer of them");
  }
}

}  // namespace

double QuantizedRole::relative_error() const {
  return squared_values > 0 ? std::sqrt(squared_error / squared_values) : 0.0;
}

std::vector<QuantizedRole> write_compressed_tensors(const Model& model, const std::string& out_dir,
                                                    const QuantizeModelOptions& options) {
  check_model(model, options);
  const Family& family = *find_family(model.config.family);
  const std::vector<NewShard> shards = plan_shards(model, options);
  const std::uint64_t all_bytes = total_bytes(shards);
  const std::string config_text = new_config(model, options);
  const fs::path target = checked_target(out_dir);
  check_space(target, all_bytes, "choose another disk");

  FolderInProgress folder(target);
  std::uint64_t done_bytes = 0;
  const auto report = [&](std::uint64_t bytes) {
    done_bytes += bytes;
    if (options.progress) options.progress(done_bytes, all_bytes);
  };
  std::map<TensorRole, QuantizedRole> books;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    ShardWriter writer(model, options, folder.path() / shard_name(i, shards.size()), shards[i]);
    std::set<std::int64_t> done;
    for (const NewTensor& tensor : shards[i].tensors) {
      const auto format = new_format(options, tensor.id.role);
      if (!format) {
        writer.write_plain(tensor, report);
      } else if (done.insert(tensor.id.key()).second) {  // parts go together
        QuantizedRole& role =
            books.try_emplace(tensor.id.role, QuantizedRole{tensor.id.role, *format}).first->second;
        writer.write_quantized(tensor.id, module_of(family.tensor_name(tensor.id)), *format, role,
                               report);
      }
    }
    writer.close();
  }
  if (shards.size() > 1)
    write_text(folder.path() / "model.safetensors.index.json", index_json(shards));
  for (const char* name : other_files) {
    if (model.files.root().empty()) break;
    if (const auto text = model.files.read(name)) write_text(folder.path() / name, *text);
  }
  write_text(folder.path() / "config.json", config_text);
  folder.commit();
  std::vector<QuantizedRole> result;
  result.reserve(books.size());
  for (const auto& [role, book] : books) result.push_back(book);
  return result;
}

}  // namespace sluice
