// Bytes that cross the link for each placement: of a run, and of its simulation, beside what the
// rules of docs/design/kv-cache.md and the model's shapes come to. Nothing here asks the cost
// model.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bitset>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <ostream>
#include <random>
#include <regex>
#include <sstream>

#include "tests/support/checkpoint_files.h"
#include "tests/support/cli_process.h"

namespace sluice {
namespace {

using nlohmann::json;
using test::TemporaryFolder;
using testing::Arguments;
using testing::CliResult;
using testing::content_of;
using testing::operator+;
using testing::run_cli;

/// A model that is much deeper than it is wide: weights of a single sublayer do not fit into the
/// memory that a run needs.
constexpr std::int64_t num_layers = 40;
constexpr std::int64_t hidden = 256;
constexpr std::int64_t query = 256;
constexpr std::int64_t head_dim = 64;
constexpr std::int64_t key_or_value = 128;
constexpr std::int64_t ffn = 256;
constexpr std::int64_t vocabulary = 256;

constexpr std::int64_t tokens_out = 3;
constexpr std::int64_t page_tokens = 16;
constexpr std::int64_t bf16 = 2;
constexpr std::int64_t f32 = 4;
/// Norms.
constexpr std::int64_t vector_bytes = 2 * hidden * f32;
/// By sublayer, 1 to 6.
constexpr std::array<std::int64_t, 6> weight_bytes = {(query + 2 * key_or_value) * hidden * bf16,
                                                      0,
                                                      0,
                                                      query* hidden* bf16,
                                                      2 * ffn* hidden* bf16,
                                                      ffn* hidden* bf16};

/// Sequences at once, with prompts of this length.
struct Batch {
  std::int64_t sequences = 5;
  std::int64_t tokens_in = 13;

  /// Of one layer's KV.
  std::int64_t slab_bytes() const {
    const std::int64_t pages = (tokens_in + tokens_out + page_tokens - 1) / page_tokens;
    return sequences * pages * page_tokens * 2 * key_or_value * bf16;
  }
};

/// What a run is told.
struct Case {
  std::string prefill;
  std::string decode;
  std::int64_t resident_layers = 0;  ///< that keep the weights which the GPU multiplies with in HBM
  std::int64_t kv_layers = 0;        ///< that keep their KV there
  Batch batch = {};
  std::int64_t mini_batches = 1;  ///< that prompts are cut into

  /// Two layers of weights, values and slabs take less than 3 MiB, with long prompts twice that.
  std::int64_t memory_mib() const {
    std::int64_t bytes = kv_layers * batch.slab_bytes();
    for (std::size_t i = 0; i < 6; ++i) bytes += stays(i) ? resident_layers * weight_bytes[i] : 0;
    return (mini_batches > 1 ? 6 : 3) + (bytes * 17 / 16 + (1 << 20) - 1) / (1 << 20);
  }
  /// Whether sublayer i + 1 has its weights in HBM in resident layers.
  bool stays(std::size_t i) const { return prefill[i] == '0' && decode[i] == '0'; }
  Arguments policy() const {
    const auto option = [](const char* key, const auto& value) {
      return Arguments{"--policy-option", fmt::format("{}={}", key, value)};
    };
    return Arguments{"--policy", SLUICE_PLACED} + option("prefill", prefill) +
           option("decode", decode) + option("resident", resident_layers) +
           option("kv", kv_layers) + option("parts", mini_batches);
  }
};

std::ostream& operator<<(std::ostream& out, const Case& of) {
  return out << fmt::format("{} then {}, {} layers of weights and {} of KV in HBM", of.prefill,
                            of.decode, of.resident_layers, of.kv_layers);
}

/// Bytes, to the GPU and back.
struct Moved {
  double to_gpu = 0;
  double from_gpu = 0;
};

enum Place : std::size_t { gpu = 0, cpu = 1 };

/// Something that passes between sublayers, with the places that have it.
class Value {
 public:
  Value(std::int64_t bytes, Place home) : bytes_(bytes) { at_.set(home); }
  void read(Place place, Moved& moved) {
    if (at_[place]) return;
    (place == gpu ? moved.to_gpu : moved.from_gpu) += static_cast<double>(bytes_);
    at_.set(place);
  }
  void write(Place place) { at_ = std::bitset<2>().set(place); }
  void update(Place place, Moved& moved) {
    read(place, moved);
    write(place);
  }

 private:
  std::int64_t bytes_;
  std::bitset<2> at_;
};

/// An iteration of the whole batch, by hand.
class Iteration {
 public:
  Iteration(const Case& of, std::vector<Value>& slabs, bool is_first)
      : case_(of),
        slabs_(slabs),
        is_first_(is_first),
        rows_(of.batch.sequences * (is_first ? of.batch.tokens_in : 1)),
        x_(rows_ * hidden * f32, cpu),
        rope_(rows_ * head_dim * f32, cpu) {
    const std::string& digits = is_first ? of.prefill : of.decode;
    std::transform(digits.begin(), digits.end(), place_.begin(),
                   [](char digit) { return digit == '0' ? gpu : cpu; });
  }

  /// `context` tokens of each sequence are known, the new ones included.
  Moved moved(std::int64_t context) {
    for (std::int64_t layer = 0; layer < num_layers; ++layer) {
      add_weights(layer);
      add_attention(layer, context);
      if (is_first_ && layer + 1 == num_layers) keep_last_rows();
      add_rest();
    }
    x_.read(cpu, moved_);  // the LM head
    return moved_;
  }

 private:
  /// All that does not live where it is used crosses, once.
  void add_weights(std::int64_t layer) {
    bool any = false;
    for (std::size_t i = 0; i < 6; ++i) {
      if (weight_bytes[i] == 0 || place_[i] == cpu) continue;
      any = true;
      if (layer < case_.resident_layers && case_.stays(i)) continue;
      moved_.to_gpu += static_cast<double>(weight_bytes[i]);
    }
    if (any) moved_.to_gpu += vector_bytes;
  }

  /// Sublayers 1 to 3. Only the device that KV lives beside stores into the slab. Cached KV crosses
  /// when attention, or half of it, runs on the other one.
  void add_attention(std::int64_t layer, std::int64_t context) {
    Value& slab = slabs_[static_cast<std::size_t>(layer)];
    const Place home = layer < case_.kv_layers ? gpu : cpu;
    const std::int64_t new_tokens = is_first_ ? case_.batch.tokens_in : 1;
    Value new_kv(rows_ * 2 * key_or_value * bf16, place_[0]);
    Value q(rows_ * query * bf16, place_[0]);
    Value scores(case_.batch.sequences * new_tokens * context * (query / head_dim) * f32,
                 place_[1]);
    const bool crosses = !is_first_ && (place_[1] != home || place_[2] != home);
    const bool all_away = place_[1] != home && place_[2] != home;
    x_.read(place_[0], moved_);
    rope_.read(place_[0], moved_);
    const bool is_stored_by_1 = place_[0] == home && !crosses && !all_away;
    if (is_stored_by_1) slab.update(home, moved_);
    q.read(place_[1], moved_);
    scores.read(place_[2], moved_);
    for (const Place place : {place_[1], place_[2]}) {
      if (place != home || crosses) new_kv.read(place, moved_);
      if (!is_first_) slab.read(place, moved_);
    }
    if (!is_stored_by_1) {
      new_kv.read(home, moved_);
      slab.update(home, moved_);
    }
  }

  /// Of the last layer's attention and of x only the rows that draw a token go on.
  void keep_last_rows() {
    x_.read(place_[5], moved_);
    rows_ = case_.batch.sequences;
    x_ = Value(rows_ * hidden * f32, place_[5]);
  }

  void add_rest() {
    Value context(rows_ * query * bf16, place_[2]);
    Value h(rows_ * ffn * bf16, place_[4]);
    context.read(place_[3], moved_);
    x_.update(place_[3], moved_);
    x_.read(place_[4], moved_);
    h.read(place_[5], moved_);
    x_.update(place_[5], moved_);
  }

  const Case& case_;
  std::vector<Value>& slabs_;
  bool is_first_;
  std::int64_t rows_;
  std::array<Place, 6> place_{};
  Value x_;
  Value rope_;
  Moved moved_;
};

Moved by_hand(const Case& of) {
  std::vector<Value> slabs;
  for (std::int64_t layer = 0; layer < num_layers; ++layer)
    slabs.emplace_back(of.batch.slab_bytes(), layer < of.kv_layers ? gpu : cpu);
  Moved sum;
  for (std::int64_t i = 0; i < tokens_out; ++i) {
    const Moved moved = Iteration(of, slabs, i == 0).moved(of.batch.tokens_in + i);
    sum.to_gpu += moved.to_gpu;
    sum.from_gpu += moved.from_gpu;
  }
  return sum;
}

std::vector<Case> cases() {
  constexpr unsigned num_placements = 64;
  std::vector<Case> all;
  const auto digits = [](unsigned bits) { return std::bitset<6>(bits).to_string(); };
  for (unsigned bits = 0; bits < num_placements; ++bits) {
    // Some with layers that stay, some with KV that stays.
    all.push_back({digits(bits), digits(bits), bits % 2 == 0 ? 6 : 0, bits % 3 == 0 ? 5 : 0});
  }
  std::mt19937 random(42);  // NOLINT: a seed
  for (int i = 0; i < 8; ++i) {
    const unsigned prefill = random() % num_placements;
    const unsigned decode = random() % num_placements;
    all.push_back({digits(prefill), digits(decode), 0, i % 4});
  }
  return all;
}

class MovedBytesTest : public ::testing::Test {
 protected:
  /// The model, with weights of no sense.
  void SetUp() override {
    json config = testing::small_llama();
    config.update({{"hidden_size", hidden},
                   {"num_hidden_layers", num_layers},
                   {"num_attention_heads", query / head_dim},
                   {"num_key_value_heads", key_or_value / head_dim},
                   {"intermediate_size", ffn},
                   {"vocab_size", vocabulary},
                   {"max_position_embeddings", 512},
                   {"torch_dtype", "bfloat16"}});
    std::filesystem::create_directory(model_);
    std::ofstream(model_ + "/config.json") << config;
    std::vector<testing::TestTensor> tensors = testing::tensors_of(config);
    for (testing::TestTensor& tensor : tensors) {
      tensor.dtype = "BF16";
      tensor.data.assign(tensor.data.size() / 2, 0);
    }
    std::ofstream(model_ + "/model.safetensors") << testing::safetensors(tensors);
  }

  CliResult generate(const Case& of, const Arguments& device) const {
    std::ofstream prompts(folder_.file("prompts"));
    for (std::int64_t i = 0; i < of.batch.sequences; ++i) {
      const std::vector<std::int64_t> ids(static_cast<std::size_t>(of.batch.tokens_in), 100 + i);
      prompts << json{{"prompt_token_ids", ids}} << "\n";
    }
    prompts.close();
    return run_cli(Arguments{"generate", "--model", model_, "--prompts", folder_.file("prompts"),
                             "--batch", std::to_string(of.batch.sequences), "--max-tokens",
                             std::to_string(tokens_out), "--ignore-eos", "--temperature", "0", "-q",
                             "--stats", folder_.file("stats")} +
                   of.policy() + device);
  }
  /// Of the program, as it counts them itself.
  Moved run(const Case& of, const Arguments& device) const {
    const CliResult result = generate(of, device);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    const json stats = json::parse(content_of(folder_.file("stats")));
    EXPECT_EQ(stats.at("device").value("prefill_mini_batches", std::int64_t{1}), of.mini_batches);
    Moved moved;
    for (const json& pair : stats.at("moved")) {
      double& way = pair.at("to") == "hbm" ? moved.to_gpu : moved.from_gpu;
      way += pair.at("bytes").get<double>();
    }
    return moved;
  }
  Moved on_stand_in(const Case& of) const {
    return run(of, {"--device", fmt::format("standin:{}MiB", of.memory_mib())});
  }
  Moved simulated(const Case& of) const {
    const std::string machine = folder_.file("machine.json");
    std::ofstream(machine) << machine_with(of.memory_mib());
    const CliResult result =
        run_cli(Arguments{"simulate", "--model", model_, "--machine", machine, "--batch",
                          std::to_string(of.batch.sequences), "--input-tokens",
                          std::to_string(of.batch.tokens_in), "--output-tokens",
                          std::to_string(tokens_out), "--json"} +
                of.policy());
    EXPECT_EQ(result.exit_code, 0) << result.err;
    const json moved = json::parse(result.out)[0].at("bytes_moved");
    return {moved.at("link to gpu"), moved.at("link to cpu")};
  }

 private:
  static json machine_with(std::int64_t memory_mib) {
    const auto number = [](double value) { return json{{"value", value}, {"source", "a test"}}; };
    const auto device = [&](const char* name) {
      return json{{"name", name},
                  {"memory_bandwidth_gb_per_s", number(20)},
                  {"gemm_tflop_per_s", number(1)},
                  {"attention_bandwidth_gb_per_s", number(20)},
                  {"attention_tflop_per_s", number(1)},
                  {"combine", "max"},
                  {"task_overhead_us", number(20)}};
    };
    json machine = {{"name", "small"},
                    {"description", "a stand-in's memory"},
                    {"causal_attention", number(0)},
                    {"cpu", device("cpu")},
                    {"gpu", device("gpu")},
                    {"system", json::object()}};
    machine["cpu"]["cores"] = number(2);
    machine["gpu"]["count"] = number(1);
    machine["tiers"]["hbm"] = {
        {"capacity_gib", number(1)},
        {"reserved_gib", number(1 - static_cast<double>(memory_mib) / 1024)}};
    machine["tiers"]["ddr"]["capacity_gib"] = number(16);
    for (const auto& [from, to] : {std::pair("ddr", "hbm"), {"hbm", "ddr"}}) {
      machine["links"].push_back({{"from", from},
                                  {"to", to},
                                  {"pinned", true},
                                  {"bandwidth_gb_per_s", number(1)},
                                  {"latency_us", number(50)}});
    }
    return machine;
  }

  TemporaryFolder folder_;
  std::string model_ = folder_.file("model");
};

/// What a batch and norms take of few bytes is left out.
void expect_near(const Moved& found, const Moved& expected) {
  constexpr double share = 0.03;
  EXPECT_NEAR(found.to_gpu, expected.to_gpu, share * expected.to_gpu);
  EXPECT_NEAR(found.from_gpu, expected.from_gpu, share * expected.from_gpu);
}

std::string name_of(const Case& of) {
  std::ostringstream name;
  name << of;
  return name.str();
}

TEST_F(MovedBytesTest, AreThoseOfTheRulesForEachPlacement) {
  for (const Case& each : cases()) {
    SCOPED_TRACE(name_of(each));
    const Moved expected = by_hand(each);
    expect_near(on_stand_in(each), expected);
    expect_near(simulated(each), expected);
  }
}

/// They fit beside the weights that are needed next. Weights cross once for all mini-batches.
TEST_F(MovedBytesTest, HiddenStatesOfMiniBatchesDoNotLeave) {
  for (const char* placement : {"010000", "011000", "001010"}) {
    const Case each = {.prefill = placement,
                       .decode = placement,
                       .batch = {.sequences = 8, .tokens_in = 100},
                       .mini_batches = 4};
    SCOPED_TRACE(name_of(each));
    const Moved expected = by_hand(each);
    expect_near(on_stand_in(each), expected);
    expect_near(simulated(each), expected);
  }
}

class MovedBytesGpuTest : public MovedBytesTest {
 protected:
  void SetUp() override {
    const json info = json::parse(run_cli({"info", "--json"}).out);
    if (info.at("cuda").at("devices").empty()) GTEST_SKIP() << "no GPU: the program sees none";
    if (info.at("cuda").at("devices")[0].at("name") != "emulated CUDA device")
      GTEST_SKIP()
          << "sizes of the emulated GPU: all of the model fits beside a real one's kernels";
    MovedBytesTest::SetUp();
  }
  /// With the least memory that does: kernels need some of it.
  Moved on_gpu(const Case& of) const {
    std::smatch named;
    const CliResult refused = generate(of, {"--device", "cuda", "--hbm", "1MiB"});
    const std::regex would_do("--hbm ([0-9]+MiB) would do");
    EXPECT_TRUE(std::regex_search(refused.err, named, would_do)) << refused.err;
    return run(of, {"--device", "cuda", "--hbm", named[1].str()});
  }
};

/// Few of them: it takes seconds for each.
TEST_F(MovedBytesGpuTest, AreThoseOfTheRulesOnAnEmulatedOneToo) {
  for (const char* placement : {"101110", "111011", "011111"}) {
    const Case each = {
        .prefill = placement, .decode = placement, .batch = {.sequences = 2, .tokens_in = 4}};
    SCOPED_TRACE(name_of(each));
    expect_near(on_gpu(each), by_hand(each));
  }
}

}  // namespace
}  // namespace sluice
