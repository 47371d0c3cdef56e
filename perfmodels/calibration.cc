#include "perfmodels/calibration.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "perfmodels/profile_document.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

/// Of the file. Raised when an old one can no longer be read.
constexpr std::int64_t file_format = 1;

constexpr double giga = 1e9;
constexpr double tera = 1e12;
constexpr double micro = 1e-6;

std::string seconds_key(Sublayer sublayer) { return fmt::format("{}_us", to_string(sublayer)); }

Json json_of(const ModelDimensions& model) {
  Json json = {{"num_layers", model.num_layers},
               {"hidden_size", model.hidden_size},
               {"embed_size", model.embed_size},
               {"num_heads", model.num_heads},
               {"num_kv_heads", model.num_kv_heads},
               {"head_dim", model.head_dim},
               {"ffn_size", model.ffn_size},
               {"vocab_size", model.vocab_size},
               {"sliding_window_tokens", model.sliding_window_tokens},
               {"gated_ffn", model.gated_ffn},
               {"num_experts", model.num_experts},
               {"experts_per_token", model.experts_per_token},
               {"weight_bits", model.weight_bits},
               {"head_bits", model.head_bits},
               {"fused_codes", model.fused_codes},
               {"kv_element_bytes", model.kv_element_bytes}};
  if (model.shared_ffn_size > 0) json["shared_ffn_size"] = model.shared_ffn_size;
  return json;
}

void add_rates(Json& json, const MachineRates& rates) {
  json["read_gb_per_s"] = rates.read_bandwidth_bytes_per_s / giga;
  json["gemm_tflop_per_s"] = rates.gemm_flop_per_s / tera;
}

MachineRates read_rates(const ProfileField& field) {
  return {.read_bandwidth_bytes_per_s = giga * field.at("read_gb_per_s").positive(),
          .gemm_flop_per_s = tera * field.at("gemm_tflop_per_s").positive()};
}

Json json_of(const CalibrationPoint& point) {
  const BatchShape& shape = point.batch.shape;
  Json samples = Json::array();
  for (const CalibrationSample& sample : point.samples) {
    Json json;
    add_rates(json, sample.rates);
    for (std::size_t i = 0; i < timed_sublayers.size(); ++i) {
      if (sample.seconds[i] > 0) json[seconds_key(timed_sublayers[i])] = sample.seconds[i] / micro;
    }
    samples.push_back(std::move(json));
  }
  return {{"phase", to_string(shape.phase)},
          {"batch", shape.batch},
          {"rows", shape.rows},
          {"context", shape.context},
          {"logit_rows", point.batch.logit_rows},
          {"samples", std::move(samples)}};
}

Json json_of(const CalibrationKvStore& sample) {
  Json json = {{"phase", to_string(sample.phase)}, {"rows", sample.rows}};
  add_rates(json, sample.rates);
  json["us"] = sample.seconds / micro;
  return json;
}

Json json_of(const CalibrationLink& link) {
  Json points = Json::array();
  for (const CalibrationLink::Point& point : link.points)
    points.push_back({point.bytes, point.seconds / micro});
  return {{"from", to_string(link.from)}, {"to", to_string(link.to)}, {"bytes_us", points}};
}

Json json_of(const CalibrationInterference& sample) {
  return {{"device", sample.device == Device::cpu ? "cpu" : "gpu"},
          {"phase", to_string(sample.phase)},
          {"kernels_alone_us", sample.kernels_alone_s / micro},
          {"kernels_beside_us", sample.kernels_beside_s / micro},
          {"link_alone_gb_per_s", sample.link_alone_bytes_per_s / giga},
          {"link_beside_gb_per_s", sample.link_beside_bytes_per_s / giga}};
}

Json json_of(const CalibrationTwoWays& sample) {
  return {{"there_alone_gb_per_s", sample.there_alone_bytes_per_s / giga},
          {"there_beside_gb_per_s", sample.there_beside_bytes_per_s / giga},
          {"back_alone_gb_per_s", sample.back_alone_bytes_per_s / giga},
          {"back_beside_gb_per_s", sample.back_beside_bytes_per_s / giga}};
}

std::int64_t whole(const ProfileField& field, double number) {
  constexpr double largest = 9e15;
  if (number != std::floor(number) || number > largest) field.refuse("a whole number");
  return static_cast<std::int64_t>(number);
}
std::int64_t read_count(const ProfileField& parent, std::string_view key) {
  const ProfileField field = parent.at(key);
  return whole(field, field.positive());
}
std::int64_t read_count_or_0(const ProfileField& parent, std::string_view key) {
  const ProfileField field = parent.at(key);
  return whole(field, field.not_negative());
}

ModelDimensions read_model(const ProfileField& field) {
  field.expect_keys({"num_layers", "hidden_size", "embed_size", "num_heads", "num_kv_heads",
                     "head_dim", "ffn_size", "vocab_size", "sliding_window_tokens", "gated_ffn",
                     "num_experts", "experts_per_token", "weight_bits", "head_bits", "fused_codes",
                     "kv_element_bytes", "shared_ffn_size"});
  ModelDimensions model;
  if (field.find("num_layers")) model.num_layers = read_count_or_0(field, "num_layers");
  model.hidden_size = read_count(field, "hidden_size");
  model.embed_size = read_count(field, "embed_size");
  model.num_heads = read_count(field, "num_heads");
  model.num_kv_heads = read_count(field, "num_kv_heads");
  model.head_dim = read_count(field, "head_dim");
  model.ffn_size = read_count(field, "ffn_size");
  model.vocab_size = read_count(field, "vocab_size");
  model.sliding_window_tokens = read_count_or_0(field, "sliding_window_tokens");
  model.gated_ffn = field.at("gated_ffn").flag();
  model.num_experts = read_count_or_0(field, "num_experts");
  model.experts_per_token = read_count_or_0(field, "experts_per_token");
  if (field.find("shared_ffn_size"))
    model.shared_ffn_size = read_count_or_0(field, "shared_ffn_size");
  model.weight_bits = field.at("weight_bits").positive();
  if (const auto bits = field.find("head_bits")) model.head_bits = bits->not_negative();
  if (const auto fused = field.find("fused_codes")) model.fused_codes = fused->flag();
  model.kv_element_bytes = read_count(field, "kv_element_bytes");
  return model;
}

CalibrationSetup read_setup(const ProfileField& field) {
  field.expect_keys({"cpu", "cores", "threads", "domains", "isa", "dtype", "device", "cpu_plan"});
  const auto device = field.find("device");
  const auto cpu_plan = field.find("cpu_plan");
  // Files of versions that had them.
  if (const auto domains = field.find("domains");
      domains && whole(*domains, domains->positive()) > 1)
    domains->complain(
        "measured with several domains, in place of which there are CPU plans; measure again");
  return {.cpu = field.at("cpu").text(),
          .cores = read_count(field, "cores"),
          .threads = read_count(field, "threads"),
          .isa = field.at("isa").text(),
          .dtype = field.at("dtype").text(),
          .device = device ? device->text() : "",
          .cpu_plan = cpu_plan ? cpu_plan->text() : ""};
}

CalibrationSample read_sample(const ProfileField& field) {
  field.expect_keys({"read_gb_per_s", "gemm_tflop_per_s", "qkv_us", "attention_us", "out_proj_us",
                     "fc1_us", "fc2_us", "lm_head_us"});
  CalibrationSample sample;
  sample.rates = read_rates(field);
  for (std::size_t i = 0; i < timed_sublayers.size(); ++i) {
    const std::string key = seconds_key(timed_sublayers[i]);
    if (timed_sublayers[i] != Sublayer::lm_head) {
      sample.seconds[i] = micro * field.at(key).positive();
    } else if (const auto head = field.find(key)) {
      sample.seconds[i] = micro * head->positive();
    }
  }
  return sample;
}

CalibrationPoint read_point(const ProfileField& field) {
  field.expect_keys({"phase", "batch", "rows", "context", "logit_rows", "samples"});
  CalibrationPoint point;
  BatchShape& shape = point.batch.shape;
  shape.phase = static_cast<Phase>(field.at("phase").word({"prefill", "decode"}));
  shape.batch = read_count(field, "batch");
  shape.rows = read_count(field, "rows");
  shape.context = read_count(field, "context");
  if (shape.phase == Phase::decode && shape.rows != 1)
    field.at("rows").refuse("1, which a decoding sequence has");
  if (shape.context < shape.rows) field.at("context").refuse("no less than the rows");
  point.batch.logit_rows = read_count_or_0(field, "logit_rows");
  for (const ProfileField& sample : field.at("samples").elements())
    point.samples.push_back(read_sample(sample));
  return point;
}

CalibrationKvStore read_kv_store(const ProfileField& field) {
  field.expect_keys({"phase", "rows", "read_gb_per_s", "gemm_tflop_per_s", "us"});
  return {.phase = static_cast<Phase>(field.at("phase").word({"prefill", "decode"})),
          .rows = read_count(field, "rows"),
          .rates = read_rates(field),
          .seconds = micro * field.at("us").positive()};
}

CalibrationLink read_link(const ProfileField& field) {
  field.expect_keys({"from", "to", "bytes_us"});
  CalibrationLink link;
  link.from = static_cast<Tier>(field.at("from").word({"hbm", "ddr", "cxl", "disk"}));
  link.to = static_cast<Tier>(field.at("to").word({"hbm", "ddr", "cxl", "disk"}));
  for (const ProfileField& point : field.at("bytes_us").elements()) {
    const std::vector<ProfileField> pair = point.elements();
    if (pair.size() != 2) point.refuse("a pair [bytes, microseconds]");
    if (!link.points.empty() && pair[0].positive() <= link.points.back().bytes)
      pair[0].refuse("more bytes than the point before has");
    link.points.push_back({pair[0].positive(), micro * pair[1].positive()});
  }
  return link;
}

CalibrationInterference read_interference(const ProfileField& field) {
  field.expect_keys({"device", "phase", "kernels_alone_us", "kernels_beside_us",
                     "link_alone_gb_per_s", "link_beside_gb_per_s"});
  return {.device = static_cast<Device>(field.at("device").word({"gpu", "cpu"})),
          .phase = static_cast<Phase>(field.at("phase").word({"prefill", "decode"})),
          .kernels_alone_s = micro * field.at("kernels_alone_us").positive(),
          .kernels_beside_s = micro * field.at("kernels_beside_us").positive(),
          .link_alone_bytes_per_s = giga * field.at("link_alone_gb_per_s").positive(),
          .link_beside_bytes_per_s = giga * field.at("link_beside_gb_per_s").positive()};
}

CalibrationTwoWays read_two_ways(const ProfileField& field) {
  field.expect_keys({"there_alone_gb_per_s", "there_beside_gb_per_s", "back_alone_gb_per_s",
                     "back_beside_gb_per_s"});
  return {.there_alone_bytes_per_s = giga * field.at("there_alone_gb_per_s").positive(),
          .there_beside_bytes_per_s = giga * field.at("there_beside_gb_per_s").positive(),
          .back_alone_bytes_per_s = giga * field.at("back_alone_gb_per_s").positive(),
          .back_beside_bytes_per_s = giga * field.at("back_beside_gb_per_s").positive()};
}

/// Of a list that may be empty or missing.
std::vector<ProfileField> elements_of(const ProfileField& parent, std::string_view key,
                                      const nlohmann::json& json) {
  const auto list = json.find(key);
  if (list == json.end() || (list->is_array() && list->empty())) return {};
  return parent.at(key).elements();
}

}  // namespace

std::size_t timed_index(Sublayer sublayer) {
  const auto* const found = std::find(timed_sublayers.begin(), timed_sublayers.end(), sublayer);
  if (found == timed_sublayers.end())
    throw Error("sublayer {} is not timed on its own", to_string(sublayer));
  return static_cast<std::size_t>(found - timed_sublayers.begin());
}

bool Calibration::complete() const {
  const auto wanted = static_cast<std::size_t>(repetitions);
  return !points.empty() && task_overhead_us.size() >= wanted &&
         (setup.device.empty() || (!links.empty() && !interference.empty())) &&
         std::all_of(points.begin(), points.end(),
                     [](const CalibrationPoint& point) { return !point.samples.empty(); });
}

const CalibrationPoint* Calibration::find(const CalibrationBatch& batch) const {
  const auto found = std::find_if(points.begin(), points.end(), [&](const CalibrationPoint& point) {
    return point.batch == batch;
  });
  return found == points.end() ? nullptr : &*found;
}

CalibrationPoint& Calibration::at(const CalibrationBatch& batch) {
  const auto found = std::find_if(points.begin(), points.end(), [&](const CalibrationPoint& point) {
    return point.batch == batch;
  });
  if (found != points.end()) return *found;
  points.push_back({.batch = batch, .samples = {}});
  return points.back();
}

bool same_layers(const ModelDimensions& a, const ModelDimensions& b) {
  const ModelDimensions of_a = measured_form(a);
  ModelDimensions with_as_many = measured_form(b);
  with_as_many.num_layers = of_a.num_layers;
  with_as_many.learned_positions = of_a.learned_positions;  // only looked up
  return of_a == with_as_many;
}

std::string format_calibration(const Calibration& calibration) {
  const CalibrationSetup& setup = calibration.setup;
  Json json;
  json["format"] = file_format;
  json["setup"] = {{"cpu", setup.cpu},
                   {"cores", setup.cores},
                   {"threads", setup.threads},
                   {"isa", setup.isa},
                   {"dtype", setup.dtype}};
  if (!setup.device.empty()) json["setup"]["device"] = setup.device;
  if (!setup.cpu_plan.empty()) json["setup"]["cpu_plan"] = setup.cpu_plan;
  json["model"] = json_of(calibration.model);
  json["ddr_bytes"] = calibration.ddr_bytes;
  json["repetitions"] = calibration.repetitions;
  json["task_overhead_us"] = calibration.task_overhead_us;
  for (const CalibrationKvStore& sample : calibration.kv_stores)
    json["kv_stores"].push_back(json_of(sample));
  Json links = Json::array();
  for (const CalibrationLink& link : calibration.links) links.push_back(json_of(link));
  json["links"] = std::move(links);
  for (const CalibrationInterference& sample : calibration.interference)
    json["interference"].push_back(json_of(sample));
  for (const CalibrationTwoWays& sample : calibration.two_ways)
    json["two_ways"].push_back(json_of(sample));
  Json points = Json::array();
  for (const CalibrationPoint& point : calibration.points) {
    if (!point.samples.empty()) points.push_back(json_of(point));
  }
  json["points"] = std::move(points);
  return json_text(json, 1) + "\n";
}

Calibration parse_calibration(std::string_view json_text, std::string_view where) {
  const nlohmann::json json = parse_profile_json(json_text, where);
  const ProfileDocument document({{std::string(where), json}});
  const ProfileField root(document);
  root.expect_keys({"format", "setup", "model", "ddr_bytes", "repetitions", "task_overhead_us",
                    "kv_stores", "links", "interference", "two_ways", "points"});
  if (read_count(root, "format") != file_format)
    root.at("format").refuse(fmt::format("{}; measure again with --force", file_format));
  Calibration calibration;
  calibration.setup = read_setup(root.at("setup"));
  calibration.model = read_model(root.at("model"));
  calibration.ddr_bytes = static_cast<std::uint64_t>(read_count(root, "ddr_bytes"));
  calibration.repetitions = read_count(root, "repetitions");
  for (const ProfileField& sample : elements_of(root, "task_overhead_us", json))
    calibration.task_overhead_us.push_back(sample.positive());
  for (const ProfileField& sample : elements_of(root, "kv_stores", json))
    calibration.kv_stores.push_back(read_kv_store(sample));
  for (const ProfileField& link : elements_of(root, "links", json))
    calibration.links.push_back(read_link(link));
  for (const ProfileField& sample : elements_of(root, "interference", json))
    calibration.interference.push_back(read_interference(sample));
  for (const ProfileField& sample : elements_of(root, "two_ways", json))
    calibration.two_ways.push_back(read_two_ways(sample));
  for (const ProfileField& field : elements_of(root, "points", json)) {
    CalibrationPoint point = read_point(field);
    if (calibration.find(point.batch) != nullptr) field.complain("the same batch stands twice");
    calibration.points.push_back(std::move(point));
  }
  return calibration;
}

}  // namespace sluice
