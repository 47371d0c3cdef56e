#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/files.h"
#include "base/json.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/units.h"
#include "codelets/weights/plain.h"
#include "engine/batching/engine.h"
#include "engine/commands/finished_request.h"
#include "engine/commands/options/command_line.h"
#include "engine/commands/options/compute_options.h"
#include "engine/commands/options/device_options.h"
#include "engine/commands/options/mixture_options.h"
#include "engine/commands/options/policy_options.h"
#include "engine/commands/options/sampling_options.h"
#include "engine/commands/options/tier_options.h"
#include "engine/commands/options/trace_options.h"
#include "engine/commands/output_file.h"
#include "engine/commands/subcommands.h"
#include "engine/console/interrupt.h"
#include "engine/console/progress.h"
#include "engine/console/standard_streams.h"
#include "engine/machine/compute.h"
#include "engine/measure/explain.h"
#include "engine/requests/detokenizer.h"
#include "engine/requests/prompts.h"
#include "engine/run/device.h"
#include "engine/run/iteration_memory.h"
#include "engine/run/moved_bytes.h"
#include "engine/run/run_engine.h"
#include "engine/run/run_setup.h"
#include "engine/trace/trace_session.h"
#include "models/model.h"
#include "perfmodels/routing_file.h"

namespace sluice {
namespace {

namespace po = boost::program_options;

/// Prompts at once, where --batch does not say.
constexpr std::int64_t most_by_default = 64;

void declare_options(CommandLine& line) {
  line.options().add_options()  //
      ("model,m", po::value<std::string>()->default_value("tiny"),
       "Hugging Face folder, or tiny: the embedded model")        //
      ("prompt,p", po::value<std::string>(), "text to continue")  //
      ("prompts", po::value<std::string>(),
       "JSON lines to continue, each {\"id\": ..., \"prompt\": ...}, perhaps with settings of its "
       "own; "
       "- reads standard input")  //
      ("output", po::value<std::string>(),
       "write JSON lines here (with --prompts), in input order")  //
      ("resume", po::bool_switch(),
       "keep what an interrupted run left in --output and do the rest")  //
      ("overwrite", po::bool_switch(), "replace --output if it exists")  //
      ("batch,b", po::value<std::int64_t>(),
       "prompts that run at once; without it, as many as fit, up to 64")  //
      ("max-tokens,n", po::value<std::int64_t>()->default_value(128),
       "tokens to add to each prompt")  //
      ("context,c", po::value<std::int64_t>(),
       "tokens that a prompt and its output may have together; without it, as many as the model "
       "allows");
  declare_sampling_options(line);
  line.options().add_options()  //
      ("min-tokens", po::value<std::int64_t>(),
       "tokens that come before an end-of-sequence token may")                   //
      ("ignore-eos", po::bool_switch(), "go on after an end-of-sequence token")  //
      ("no-special-tokens", po::bool_switch(),
       "do not add the tokenizer's special tokens to prompts")  //
      ("no-echo", po::bool_switch(), "with --prompt: print the continuation only");
  declare_compute_options(line);
  declare_fusion_option(line);
  line.options().add_options()  //
      ("attention", po::value<std::string>()->default_value("fused"),
       "fused: one stage; split: QK^T and SV as two tasks with stored scores");
  declare_policy_options(line);
  declare_device_options(line);
  declare_trace_option(line);
  declare_record_routing(line);
  declare_tier_options(line, DryRunJson::own_option);
  line.options().add_options()                                                          //
      ("stats", po::value<std::string>(), "write the run's figures to this JSON file")  //
      ("explain", po::bool_switch(),
       "after the run: predicted against measured time of each sublayer, flip points, and what "
       "faster parts would change, on stderr")  //
      ("quiet,q", po::bool_switch(), "no summary on stderr");
}

/// What the command line asks for, checked as far as it can be without a model.
struct Settings {
  std::string model;
  std::optional<std::int64_t> batch;  ///< nothing: as many prompts as fit
  std::int64_t max_tokens = 128;
  std::optional<std::int64_t> context;  ///< nothing: the model's
  std::optional<std::int64_t> min_tokens;
  std::vector<std::string> stop;
  bool ignore_eos = false;
  Tokenizer::SpecialTokens special = Tokenizer::SpecialTokens::add;
  std::optional<DType> dtype;
  CpuUse cpu;
  AttentionForm attention = AttentionForm::fused;
  Fusion fusion = Fusion::layers;
  TierSettings tiers;
  bool json = false;  ///< of --dry-run
  Accelerator accelerator;
};

Settings read_settings(const CommandLine& line) {
  Settings settings;
  settings.model = line.get<std::string>("model");
  if (line.given("batch")) settings.batch = in_range<std::int64_t>(line, "batch", 1, 65536);
  settings.max_tokens = in_range<std::int64_t>(line, "max-tokens", 1, 1 << 24);
  if (line.given("context")) settings.context = in_range<std::int64_t>(line, "context", 1, 1 << 24);
  if (line.given("min-tokens"))
    settings.min_tokens = in_range<std::int64_t>(line, "min-tokens", 0, settings.max_tokens);
  settings.stop = read_stop(line);
  settings.ignore_eos = line.get<bool>("ignore-eos");
  if (line.get<bool>("no-special-tokens")) settings.special = Tokenizer::SpecialTokens::leave_out;
  settings.dtype = read_dtype(line);
  settings.cpu = read_cpu_use(line);
  settings.fusion = read_fusion(line);
  const std::string& attention = line.get<std::string>("attention");
  if (attention != "fused" && attention != "split") {
    throw UsageError("--attention {}: expected fused or split", attention);
  }
  if (attention == "split") settings.attention = AttentionForm::split;
  settings.tiers = read_tier_settings(line);
  settings.json = read_dry_run_json(line, settings.tiers);
  settings.accelerator = find_accelerator(read_device(line));
  if (line.given("prompt") && line.given("prompts")) {
    throw UsageError("--prompt and --prompts exclude each other");
  }
  if (!line.given("prompt") && !line.given("prompts")) {
    throw UsageError("nothing to continue: give --prompt TEXT or --prompts FILE.jsonl");
  }
  if (line.given("output") && !line.given("prompts")) throw UsageError("--output needs --prompts");
  if (line.get<bool>("resume") && !line.given("output"))
    throw UsageError("--resume needs --output");
  if (line.get<bool>("resume") && line.get<bool>("overwrite")) {
    throw UsageError("--resume and --overwrite exclude each other");
  }
  return settings;
}

/// Greedy, unless the model's folder says that it samples.
SamplingParams sampling_of(const GenerationConfig& generation) {
  SamplingParams params;
  if (generation.do_sample.value_or(false)) {
    params.temperature = generation.temperature.value_or(1.0F);
    params.top_k = generation.top_k.value_or(0);
    params.top_p = generation.top_p.value_or(1.0F);
    params.min_p = generation.min_p.value_or(0.0F);
  }
  params.repetition_penalty = generation.repetition_penalty.value_or(1.0F);
  return params;
}

/// Tokenises and checks one prompt. `place` says where it came from.
void fill_prompt(Request& request, const PromptLine& line, const std::string& place,
                 const Model& model, const Tokenizer* tokenizer, const Settings& settings) {
  request.id = line.id;
  request.prompt = line.prompt;
  request.prompt_tokens = line.prompt_token_ids;
  if (line.prompt_token_ids.empty()) {
    if (tokenizer == nullptr) {
      throw Error(
          "{} has no tokenizer files; give prompts as \"prompt_token_ids\" in a --prompts file",
          settings.model);
    }
    request.prompt_tokens = tokenizer->encode(line.prompt, settings.special);
  } else if (tokenizer != nullptr) {
    Utf8Stream utf8;  // the tokens may begin or end inside of a character
    request.prompt = utf8.feed(tokenizer->decode(line.prompt_token_ids));
    request.prompt += utf8.finish();
  }
  if (request.prompt_tokens.empty())
    throw Error("{}: the prompt gives no tokens; give it some text", place);
  for (const std::int32_t token : request.prompt_tokens) {
    if (token < 0 || token >= model.config.vocab_size) {
      throw Error("{}: token id {} is outside of the model's vocabulary of {}", place, token,
                  model.config.vocab_size);
    }
  }
  if (line.fields.stop && tokenizer == nullptr)
    throw Error("{}: stop needs text, and {} has no tokenizer files", place, settings.model);
  for (const std::int32_t token : line.fields.stop_tokens) {
    if (token >= model.config.vocab_size)
      throw Error("{}: stop_token_ids has {}, expected token ids from 0 to {}", place, token,
                  model.config.vocab_size - 1);
  }
  const auto length = static_cast<std::int64_t>(request.prompt_tokens.size());
  if (length > model.config.max_positions) {
    throw Error("{}: the prompt has {} tokens, the model's context is {}; shorten it", place,
                length, model.config.max_positions);
  }
}

/// The line's own, the command line's, or what the model's folder says.
void set_min_tokens(Request& request, const RequestFields& fields, const std::string& place,
                    const Settings& settings, const Model& model) {
  if (fields.min_tokens.value_or(0) > fields.max_tokens.value_or(settings.max_tokens))
    throw Error("{}: min_tokens is {}, expected at most the {} that may be generated", place,
                *fields.min_tokens, fields.max_tokens.value_or(settings.max_tokens));
  const std::optional<std::int64_t> wanted =
      fields.min_tokens ? fields.min_tokens : settings.min_tokens;
  const auto length = static_cast<std::int64_t>(request.prompt_tokens.size());
  request.min_new_tokens = std::min(wanted.value_or(model.generation.min_new_tokens_after(length)),
                                    request.max_new_tokens);
}

std::vector<Request> read_requests(const CommandLine& line, const Settings& settings,
                                   const Model& model, const Tokenizer* tokenizer) {
  std::vector<PromptLine> lines;
  std::string place_prefix = "--prompt";
  if (line.given("prompt")) {
    const std::string& prompt = line.get<std::string>("prompt");
    if (prompt.empty()) throw Error("--prompt: the prompt is empty; give it some text");
    if (const auto bad = find_invalid_utf8(prompt)) {
      throw Error("--prompt: invalid UTF-8 at byte {}; pass the text as UTF-8", *bad + 1);
    }
    lines.push_back({.line = 1, .id = "0", .prompt = prompt, .prompt_token_ids = {}});
  } else {
    place_prefix = line.get<std::string>("prompts");
    lines = read_prompts(place_prefix);
    if (interrupt_flag()) throw Interrupted();  // what came on standard input may be cut off
  }
  const SamplingParams sampling = read_sampling(line, sampling_of(model.generation));
  for (const std::string& warning : warnings_of(model.generation, sampling.temperature > 0))
    logger().warn("{}", warning);
  std::vector<Request> requests;
  for (const PromptLine& prompt : lines) {
    const RequestFields& fields = prompt.fields;
    Request request;
    request.index = static_cast<std::int64_t>(requests.size());
    request.max_new_tokens = settings.max_tokens;
    request.ignore_eos = settings.ignore_eos;
    if (!fields.stop) request.stop = settings.stop;
    if (tokenizer != nullptr) {
      const std::vector<std::string>& own = model.generation.stop_strings;
      request.stop.insert(request.stop.end(), own.begin(), own.end());
    }
    request.sampling = sampling;
    request.logprobs = prompt.logprobs;
    fields.apply_to(request);
    const std::string place =
        line.given("prompt") ? place_prefix : fmt::format("{}, line {}", place_prefix, prompt.line);
    fill_prompt(request, prompt, place, model, tokenizer, settings);
    const auto length = static_cast<std::int64_t>(request.prompt_tokens.size());
    if (fields.max_tokens)
      request.max_new_tokens = std::min(*fields.max_tokens, most_new_tokens(model.config, length));
    if (settings.context) {
      if (length >= *settings.context) {
        throw Error("{}: the prompt has {} tokens, --context is {}; give it at least {}", place,
                    length, *settings.context, length + 1);
      }
      request.max_new_tokens = std::min(request.max_new_tokens, *settings.context - length);
    }
    set_min_tokens(request, fields, place, settings, model);
    requests.push_back(std::move(request));
  }
  return requests;
}

/// What a run takes of DDR.
struct MemoryNeed {
  std::vector<IterationSize> iterations;
  HostNeed host;
  std::int64_t kv_pages = 0;
};

MemoryNeed need_of(const std::vector<Request>& requests, const Model& model, DType dtype,
                   const Settings& settings, std::int64_t batch, std::int64_t chunk_tokens) {
  const ModelConfig& config = model.config;
  const DecoderShape shape = decoder_shape(config, dtype);
  std::int64_t longest = 1;
  std::int64_t longest_prompt = 1;
  for (const Request& request : requests) {
    longest = std::max(longest, kv_tokens(request, config));
    longest_prompt =
        std::max(longest_prompt, static_cast<std::int64_t>(request.prompt_tokens.size()));
  }
  MemoryNeed need;
  need.iterations = {
      {.phase = Phase::prefill, .sequences = batch, .rows = std::min(longest_prompt, chunk_tokens)},
      {.phase = Phase::decode, .sequences = batch}};
  need.host = iteration_need(config, need.iterations, longest,
                             {.dtype = dtype,
                              .fusion = settings.fusion,
                              .attention = settings.attention,
                              .accelerated = static_cast<bool>(settings.accelerator)});
  need.kv_pages = KvCache::pages_for(longest) * batch;
  need.host.kv_bytes = KvCache::size_bytes(shape, config.num_layers, need.kv_pages);
  need.host.table_bytes = table_bytes(model);
  return need;
}

HostPlan host_plan(const std::vector<Request>& requests, const Model& model, DType dtype,
                   const Settings& settings, std::int64_t batch, std::int64_t chunk_tokens) {
  const MemoryNeed need = need_of(requests, model, dtype, settings, batch, chunk_tokens);
  return {model.config, dtype, need.host, settings.tiers};
}

/// The largest batch below `too_many` that fits, where smaller ones do, too; 0: none.
template <typename Fits>
std::int64_t largest_batch(std::int64_t too_many, const Fits& fits) {
  std::int64_t largest = 0;
  while (too_many - largest > 1) {
    const std::int64_t middle = (largest + too_many) / 2;
    (fits(middle) ? largest : too_many) = middle;
  }
  return largest;
}

/// Throws Error when the run does not fit; called before anything is loaded. With a disk beside an
/// accelerator the plan is not the last one, and is not checked.
HostPlan check_memory(const std::vector<Request>& requests, const Model& model, DType dtype,
                      const Settings& settings, std::int64_t batch, std::int64_t chunk_tokens) {
  const auto plan = [&](DType other_dtype, std::int64_t other_batch) {
    return host_plan(requests, model, other_dtype, settings, other_batch, chunk_tokens);
  };
  HostPlan chosen = plan(dtype, batch);
  if (chosen.missing_bytes() == 0 || (settings.accelerator && settings.tiers.disk)) return chosen;
  std::string hint;
  if (dtype == DType::f32 && plan(DType::bf16, batch).missing_bytes() == 0)
    hint = "--dtype bf16 would fit";
  const std::int64_t fits = largest_batch(
      batch, [&](std::int64_t smaller) { return plan(dtype, smaller).missing_bytes() == 0; });
  if (fits > 0) hint = fmt::format("--batch {} would fit", fits);
  throw Error("{}", shortage_text(chosen, settings.tiers, hint));
}

/// What a policy knows of the run beforehand: the longest prompt, the longest output.
Workload workload_of(const std::vector<Request>& requests, std::int64_t batch) {
  Workload workload{.batch = batch, .input_tokens = 0, .output_tokens = 0};
  for (const Request& request : requests) {
    workload.input_tokens =
        std::max(workload.input_tokens, static_cast<std::int64_t>(request.prompt_tokens.size()));
    workload.output_tokens = std::max(workload.output_tokens, request.max_new_tokens);
  }
  return workload;
}

/// Everything that the end of a run tells.
struct Report {
  EngineStats totals;
  double load_s = 0;
  double first_token_s = 0;  ///< sums, over sequences that drew a token
  double per_token_s = 0;
  std::int64_t sequences_with_token = 0;
  std::int64_t sequences_with_two = 0;
  std::vector<std::string> finish_reasons;  ///< by place in the input; empty where nothing ran

  void add(const Completion& completion) {
    if (completion.output == 0)
      finish_reasons.at(static_cast<std::size_t>(completion.request->index)) =
          to_string(completion.finish_reason);
    if (completion.num_drawn > 0) {
      first_token_s += completion.time_to_first_token_s();
      ++sequences_with_token;
    }
    if (completion.num_drawn > 1) {
      per_token_s += completion.time_per_output_token_s();
      ++sequences_with_two;
    }
  }
  double ttft_s() const {
    return first_token_s / static_cast<double>(std::max<std::int64_t>(1, sequences_with_token));
  }
  double tpot_s() const {
    return per_token_s / static_cast<double>(std::max<std::int64_t>(1, sequences_with_two));
  }
  double tokens_per_s() const {
    return totals.wall_s > 0 ? static_cast<double>(totals.generated_tokens) / totals.wall_s : 0;
  }
};

void write_stats(const std::string& path, const Report& report, const std::string& model,
                 const RunPlan& plan, LoadedRun& run, const LayerPlacement& placement,
                 const MovedBytes& moved, const RoutingCounts& routed) {
  nlohmann::json stats;
  stats["model"] = model;
  stats["dtype"] = to_string(plan.demand().dtype);
  stats["threads"] = run.runtime().num_threads();
  stats["cpu_plan"] = cpu_plan_as_json(plan.demand().cpu);
  stats["tuned_gemm_shapes"] = run.tuned_gemm_shapes();
  stats["kv_groups"] = kv_groups_as_json(run.kv().front());
  stats["prompt_tokens"] = report.totals.prompt_tokens;
  stats["generated_tokens"] = report.totals.generated_tokens;
  stats["iterations"] = report.totals.iterations;
  stats["load_s"] = report.load_s;
  stats["wall_s"] = report.totals.wall_s;
  stats["ttft_s"] = report.ttft_s();
  stats["tpot_s"] = report.tpot_s();
  stats["tokens_per_s"] = report.tokens_per_s();
  stats["peak_bytes"] = {{"ddr", peak_resident_bytes()}};
  stats["finish_reason"] = report.finish_reasons;
  stats["policy"] = plan.policy_run().name();
  for (const Phase phase : {Phase::prefill, Phase::decode}) {
    nlohmann::json& placed = stats["placements"][std::string(to_string(phase))];
    placed = nlohmann::json::object();
    const auto& layers = plan.policy_run().placed_layers(phase);
    for (unsigned bits = 0; bits < num_placements; ++bits) {
      if (layers.at(bits) > 0) placed[Placement::from_bits(bits).to_string()] = layers.at(bits);
    }
  }
  if (plan.accelerated() != nullptr) {
    plan.accelerated()->add_to(stats, run.runtime());
    stats["device"]["prefill_mini_batches"] = plan.prefill_mini_batches();
  }
  if (run.disk() != nullptr) run.disk()->add_to(stats);
  placement.add_to(stats);
  moved.add_to(stats);
  if (!routed.empty()) {
    nlohmann::json& routing = stats["routing"];
    routing["rows"] = routed.rows();
    routing["experts_touched"] = routed.mean_touched();
    for (const TouchedExperts& touched : routed.touched_by_rows())
      routing["touched_by_rows"].push_back({touched.rows, touched.mean});
  }
  write_file(path, json_text(stats, 2) + "\n");
}

void print_summary(const Report& report, std::int64_t batch, const std::string& policy) {
  fmt::print(stderr,
             "prompt {} tokens, generated {} tokens in {:.2f} s ({:.1f} tokens/s{}); "
             "time to first token {:.1f} ms, per output token {:.2f} ms; loaded in {:.2f} s; peak "
             "memory: ddr {}; {}\n",
             report.totals.prompt_tokens, report.totals.generated_tokens, report.totals.wall_s,
             report.tokens_per_s(),
             batch > 1 ? fmt::format(", up to {} prompts at once", batch) : "",
             report.ttft_s() * 1e3, report.tpot_s() * 1e3, report.load_s,
             format_bytes(peak_resident_bytes()), policy);
}

/// Lines on stdout, in input order: a line waits for those before it.
class OrderedLines {
 public:
  void add(std::int64_t index, std::string line) {
    waiting_.emplace(index, std::move(line));
    while (!waiting_.empty() && waiting_.begin()->first == next_) {
      std::cout << waiting_.begin()->second << '\n';
      waiting_.erase(waiting_.begin());
      ++next_;
    }
    flush_stdout();
  }
  /// After an interruption: what is finished, without what is missing between.
  void finish() {
    for (const auto& [index, line] : waiting_) std::cout << line << '\n';
    flush_stdout();
  }

 private:
  std::int64_t next_ = 0;
  std::map<std::int64_t, std::string> waiting_;
};

OutputFile::Mode output_mode(const CommandLine& line) {
  if (line.get<bool>("resume")) return OutputFile::Mode::resume;
  return line.get<bool>("overwrite") ? OutputFile::Mode::overwrite : OutputFile::Mode::create;
}

/// Leaves out what an earlier run has finished.
std::vector<Request> without_finished(std::vector<Request> requests, OutputFile& output,
                                      const std::string& path) {
  std::vector<Request> left;
  std::size_t found = 0;
  for (Request& request : requests) {
    const auto finished = output.finished().find(request.id);
    if (finished == output.finished().end()) {
      left.push_back(std::move(request));
      continue;
    }
    ++found;
    output.place_finished(request.id, request.index);
    if (finished->second != prompt_identity(request) && !finished->second.empty()) {
      throw Error(
          "{}: the line with id \"{}\" has another prompt; --resume needs the prompts file that "
          "the "
          "first run had",
          path, request.id);
    }
  }
  if (found != output.finished().size()) {
    throw Error(
        "{} has lines whose ids are not among the prompts; --resume needs the prompts file that "
        "the "
        "first run had",
        path);
  }
  return left;
}

/// The run itself, once everything is checked.
class GenerateRun {
 public:
  GenerateRun(const CommandLine& line, const Settings& settings, const Model& model,
              const Tokenizer* tokenizer, RunPolicy& policy, TraceSession& trace)
      : line_(line),
        settings_(settings),
        model_(model),
        tokenizer_(tokenizer),
        policy_(policy),
        trace_(trace),
        dtype_(choose_dtype(settings.dtype)) {}

  /// With --dry-run says what it would take, and no more.
  int execute(std::vector<Request> requests) {
    report_.finish_reasons.resize(requests.size());
    std::unique_ptr<OutputFile> output;
    const bool dry_run = settings_.tiers.dry_run;
    if (line_.given("record-routing") && !dry_run)
      check_records_routing(line_.get<std::string>("record-routing"), model_.name, model_.config,
                            static_cast<bool>(settings_.accelerator));
    if (line_.given("output") && !dry_run) {
      const std::string& path = line_.get<std::string>("output");
      output = std::make_unique<OutputFile>(path, output_mode(line_));
      if (line_.get<bool>("resume"))
        requests = without_finished(std::move(requests), *output, path);
    }
    if (line_.given("stats") && !dry_run) check_writable(line_.get<std::string>("stats"));
    EngineOptions options = engine_options(model_);
    RunPlan plan = [&] {
      const EndsSoonAfterInterrupt ends_soon([&] { output.reset(); });  // with what is in it
      return make_plan(requests, batch_of(requests, options.prefill_chunk_tokens),
                       options.prefill_chunk_tokens);
    }();
    const Workload workload = plan.demand().workload;
    options.max_sequences = workload.batch;
    if (dry_run) {
      std::cout << format_tiers(plan.uses(),
                                settings_.json ? OutputFormat::json : OutputFormat::table);
      plan.check_disk();
      return 0;
    }
    const bool quiet = line_.get<bool>("quiet");
    if (!quiet) fmt::print(stderr, "{}", plan.slower_than_one_device());
    trace_.computed_by(json_text(cpu_plan_as_json(plan.demand().cpu)));
    trace_.divide_stages_by(plan.costs().model, plan.policy_run().memory());
    LoadedRun run(plan);
    if (line_.given("record-routing")) routing_ = &run.runtime().record_routing();
    report_.load_s = run.load_s();
    RunEngine engine(run.model(), run.kv(), plan.policy_run(), options,
                     {.attention = settings_.attention, .fusion = settings_.fusion});
    const bool explain = line_.get<bool>("explain");
    std::optional<RunExplainer> explainer;
    if (explain) {
      explainer.emplace(run.runtime(), dtype_, run.model().weight_bytes(), plan.policy_run());
    }
    MovedBytes moved(run.runtime(), run.model(), plan.accelerator(), run.disk());
    moved.run_begins();
    {
      const TraceSession::Recording recording = trace_.record();
      generate(engine.engine(), std::move(requests), output.get());
    }
    moved.run_ends(report_.totals.wall_s, plan.host().cxl().has_value());
    if (output) output->put_in_order();
    std::optional<LayerPlacement> placement;  // asking takes up to half a second
    if (!quiet || line_.given("stats"))
      placement.emplace(run.model(), plan.host(), settings_.tiers);
    if (explain) explainer->end(report_.totals.wall_s);
    RoutingCounts routed;
    if (routing_ != nullptr) {
      routed = routing_->take();
      write_file(line_.get<std::string>("record-routing"),
                 format_routing(routed.recorded(model_.name, model_.config.num_layers)));
    }
    if (line_.given("stats")) {
      write_stats(line_.get<std::string>("stats"), report_, model_.name, plan, run, *placement,
                  moved, routed);
    }
    if (!quiet) {
      print_summary(report_, workload.batch, policy_.describe());
      fmt::print(stderr, "{}{}{}\n", run.summary(), placement->summary(), moved.summary());
    }
    if (explain) {
      fmt::print(stderr, "{}", explainer->explain(plan.costs(), plan.policy().policy(), workload));
    }
    return interrupt_flag() ? interrupted_exit_code : 0;
  }

 private:
  /// Outputs at once: what was asked for, else as many as DDR holds.
  std::int64_t batch_of(const std::vector<Request>& requests, std::int64_t chunk_tokens) const {
    std::int64_t count = 0;
    for (const Request& request : requests) count += request.num_outputs;
    count = std::max<std::int64_t>(1, count);
    if (settings_.batch) return std::min(*settings_.batch, count);
    const auto fits = [&](std::int64_t batch) {
      return host_plan(requests, model_, dtype_, settings_, batch, chunk_tokens).missing_bytes() ==
             0;
    };
    return std::max<std::int64_t>(1, largest_batch(std::min(count, most_by_default) + 1, fits));
  }

  /// Throws Error where it does not fit; a batch that nobody asked for is halved until it does.
  RunPlan make_plan(const std::vector<Request>& requests, std::int64_t batch,
                    std::int64_t chunk_tokens) {
    while (true) {
      const HostPlan host = check_memory(requests, model_, dtype_, settings_, batch, chunk_tokens);
      const MemoryNeed need = need_of(requests, model_, dtype_, settings_, batch, chunk_tokens);
      try {
        return plan_run({.model = model_,
                         .dtype = dtype_,
                         .cpu = settings_.cpu,
                         .tiers = settings_.tiers,
                         .accelerator = settings_.accelerator,
                         .workload = workload_of(requests, batch),
                         .need = need.host,
                         .iterations = need.iterations,
                         .kv = {.all = need.kv_pages},
                         .one_cohort = false,
                         .timed = line_.get<bool>("explain"),
                         .smaller = batch > 1 ? "a smaller --batch needs less" : ""},
                        host, policy_);
      } catch (const UsageError&) {
        throw;
      } catch (const Error&) {
        if (settings_.batch || batch == 1) throw;
        batch /= 2;
      }
    }
  }

  void generate(Engine& engine, std::vector<Request> requests, OutputFile* output) {
    const auto total = static_cast<double>(requests.size());
    std::size_t finished = 0;
    OrderedLines lines;
    ProgressBar bar("generating");
    Detokenizer::OnText on_text;
    const bool single = line_.given("prompt");
    if (single) {
      if (!line_.get<bool>("no-echo")) std::cout << requests.front().prompt;
      flush_stdout();
      on_text = [](const Request&, std::int64_t, const std::string& text) {
        std::cout << text;
        flush_stdout();
      };
    }
    FinishedRequests gathered;
    const auto on_finished = [&](Completion completion) {
      if (completion.finish_reason == FinishReason::rejected) throw Error("{}", completion.problem);
      report_.add(completion);
      if (completion.finish_reason == FinishReason::interrupted || single) return;
      const std::optional<FinishedRequest> request = gathered.add(std::move(completion));
      if (!request) return;
      ++finished;
      if (output != nullptr) {
        output->add(*request);
      } else {
        lines.add(request->request().index, completion_line(*request));
      }
      bar.update(static_cast<double>(finished), total,
                 fmt::format("{} of {} prompts", finished, total));
    };
    RequestList source(std::move(requests));
    Detokenizer detokenizer(tokenizer_, on_text, on_finished);
    EngineEvents events = detokenizer.events();
    events.on_token = [&gathered, take = std::move(events.on_token)](const Request& request,
                                                                     const DrawnToken& token) {
      gathered.note_token(request, token);
      return take(request, token);
    };
    report_.totals = engine.run(source, events, interrupt_flag());
    bar.clear();
    if (single) std::cout << '\n';
    lines.finish();
  }

  const CommandLine& line_;
  const Settings& settings_;
  const Model& model_;
  const Tokenizer* tokenizer_;
  RunPolicy& policy_;
  TraceSession& trace_;
  DType dtype_;
  Report report_;
  RoutingRecorder* routing_ = nullptr;  ///< with --record-routing
};

}  // namespace

int run_generate(const CommandLine::Arguments& arguments) {
  CommandLine line(
      "sluice generate [options]",
      "Continues a prompt, or many. Text goes to stdout as it comes; --prompts gives JSON lines.");
  declare_options(line);
  if (!line.parse(arguments)) return 0;
  const Settings settings = read_settings(line);
  if (!line.given("output") && write(STDOUT_FILENO, "", 0) < 0) {
    throw Error("cannot write to standard output: {}", std::strerror(errno));
  }
  RunPolicy policy(read_policy(line));
  const Model model = open_model(settings.model);
  const std::unique_ptr<Tokenizer> tokenizer =
      has_tokenizer(model.files) ? open_tokenizer(model.files) : nullptr;
  if (tokenizer == nullptr && !settings.stop.empty()) {
    throw Error("--stop needs text, and {} has no tokenizer files", settings.model);
  }
  std::vector<Request> requests = read_requests(line, settings, model, tokenizer.get());
  TraceSession trace(read_trace_folder(line));
  GenerateRun run(line, settings, model, tokenizer.get(), policy, trace);
  return trace.around([&] { return run.execute(std::move(requests)); }, line.get<bool>("quiet"));
}

}  // namespace sluice
