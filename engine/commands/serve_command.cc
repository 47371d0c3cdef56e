#include <algorithm>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/json.h"
#include "base/units.h"
#include "codelets/runtime/gpu_busy.h"
#include "codelets/weights/plain.h"
#include "engine/commands/options/chat_template_option.h"
#include "engine/commands/options/command_line.h"
#include "engine/commands/options/compute_options.h"
#include "engine/commands/options/device_options.h"
#include "engine/commands/options/policy_options.h"
#include "engine/commands/options/serving_options.h"
#include "engine/commands/options/tier_options.h"
#include "engine/commands/options/trace_options.h"
#include "engine/commands/subcommands.h"
#include "engine/console/interrupt.h"
#include "engine/machine/compute.h"
#include "engine/run/moved_bytes.h"
#include "engine/run/run_engine.h"
#include "engine/run/serving_plan.h"
#include "engine/serve/engine_backend.h"
#include "engine/serve/server.h"
#include "engine/trace/trace_session.h"
#include "models/model.h"

namespace sluice {
namespace {

namespace po = boost::program_options;

void declare_options(CommandLine& line) {
  line.options().add_options()  //
      ("model,m", po::value<std::string>()->default_value("tiny"),
       "Hugging Face folder, or tiny: the embedded model")  //
      ("host", po::value<std::string>()->default_value("127.0.0.1"),
       "address to listen at; 0.0.0.0: for other machines, too")                                 //
      ("port", po::value<int>()->default_value(8080), "port to listen at; 0: any that is free")  //
      ("served-model-name", po::value<std::string>(),
       "the model's name for clients; without it, its folder's")  //
      ("api-key-file", po::value<std::string>(),
       "file with a key a line; clients have to send one of them");
  declare_chat_template_option(line,
                               "file with the Jinja template for chats; without it, the model's");
  line.options().add_options()  //
      ("max-queue", po::value<std::int64_t>()->default_value(256),
       "outputs that may wait; further requests are answered with 429")  //
      ("drain-s", po::value<double>()->default_value(30),
       "seconds that running requests have to finish after SIGTERM");
  declare_compute_options(line);
  declare_fusion_option(line);
  declare_serving_options(line);
  declare_policy_options(line);
  declare_device_options(line);
  declare_trace_option(line);
  declare_tier_options(line, DryRunJson::own_option);
  line.options().add_options()("quiet,q", po::bool_switch(), "no summary on stderr");
}

/// What the command line asks for, checked as far as it can be without a model.
struct Settings {
  ServeSettings server;
  ServingSettings serving;
  std::int64_t max_queue = 256;
  ComputeSettings compute;
  Fusion fusion = Fusion::layers;
  TierSettings tiers;
  bool json = false;
  bool quiet = false;
};

Settings read_settings(const CommandLine& line) {
  Settings settings;
  settings.server.host = line.get<std::string>("host");
  settings.server.port = static_cast<std::uint16_t>(in_range(line, "port", 0, 65535));
  if (line.given("api-key-file"))
    settings.server.api_key_file = line.get<std::string>("api-key-file");
  settings.server.drain = std::chrono::milliseconds(
      static_cast<std::int64_t>(1e3 * in_range(line, "drain-s", 0.0, 1e6)));
  settings.serving = read_serving(line);
  settings.max_queue = in_range<std::int64_t>(line, "max-queue", 0, std::int64_t{1} << 30);
  settings.compute = read_compute_settings(line);
  settings.fusion = read_fusion(line);
  settings.tiers = read_tier_settings(line);
  settings.json = read_dry_run_json(line, settings.tiers);
  settings.quiet = line.get<bool>("quiet");
  return settings;
}

ChatRenderer chat_renderer(const CommandLine& line, const Model& model) {
  const std::optional<ChatTemplate> found = find_chat_template(line, model.files);
  if (!found) return {};
  return [chat = *found](const nlohmann::ordered_json& messages, const ChatRendering& options) {
    ChatOptions chosen{.add_generation_prompt = options.add_generation_prompt,
                       .continue_final_message = options.continue_final_message,
                       .tools = {},
                       .documents = {},
                       .variables = {},
                       .now = {},
                       .limits = {}};
    if (options.variables != nullptr) chosen.variables = *options.variables;
    return chat.render(messages, chosen);
  };
}

/// The model's folder, or the name of an embedded one.
std::string name_of(const std::string& model) {
  const std::filesystem::path path = std::filesystem::path(model).lexically_normal();
  return path.has_filename() ? path.filename().string() : path.parent_path().filename().string();
}

std::string device_name(const Accelerator& accelerator) {
  switch (accelerator.kind) {
    case Accelerator::Kind::none:
      return {};
    case Accelerator::Kind::cuda:
      return "cuda";
    case Accelerator::Kind::stand_in:
      return "standin";
  }
  return {};
}

/// What a run's devices have computed, and what has moved between tiers, since this was made.
class RunMeters {
 public:
  RunMeters(const RunPlan& plan, const LoadedRun& run)
      : run_(run),
        stand_in_(plan.accelerator().kind == Accelerator::Kind::stand_in),
        moved_(run.runtime(), run.model(), plan.accelerator(), run.disk()) {
    if (plan.accelerator().kind == Accelerator::Kind::cuda) gpu_.emplace();
    moved_.run_begins();
  }

  double busy_s(Device device) {
    if (device == Device::cpu) return run_.runtime().busy_seconds();
    if (stand_in_) return run_.runtime().accelerator_totals().seconds();
    return gpu_ ? gpu_->seconds() : 0;
  }
  std::vector<EngineSnapshot::Moved> moved() const {
    std::vector<EngineSnapshot::Moved> moved;
    for (const TierMove& move : moved_.so_far())
      moved.push_back({std::string(to_string(move.from)), std::string(to_string(move.to)),
                       static_cast<std::int64_t>(move.bytes)});
    return moved;
  }

 private:
  const LoadedRun& run_;
  bool stand_in_;
  MovedBytes moved_;
  std::optional<GpuBusy> gpu_;
};

/// The engine's side, on the thread that starts StarPU.
void serve(RunPlan& plan, const Settings& settings, const Model& model, TraceSession& trace,
           EngineBackend& backend, const std::string& url, const std::string& policy) {
  LoadedRun run(plan);
  EngineOptions options = engine_options(model);
  settings.serving.apply_to(options);
  RunEngine engine(run.model(), run.kv(), plan.policy_run(), options,
                   {.fusion = settings.fusion, .sharing = settings.serving.sharing});
  RunMeters meters(plan, run);
  std::int64_t largest_pool = 0;
  EngineBackend::Shown shown{.policy = plan.policy_run().name(),
                             .tiers = engine.tiers(),
                             .pools = engine.pools(),
                             .accelerator = device_name(plan.accelerator()),
                             .busy_s = [&](Device device) { return meters.busy_s(device); },
                             .moved = [&] { return meters.moved(); },
                             .page_bytes = static_cast<std::int64_t>(KvCache::size_bytes(
                                 run.model().shape(), model.config.num_layers, 1))};
  std::string pools;
  for (std::size_t i = 0; i < engine.pools().size(); ++i) {
    const std::int64_t pages = engine.pools()[i].num_pages();
    largest_pool = std::max(largest_pool, pages);
    pools += fmt::format("{}{} tokens in {}", i == 0 ? "" : ", ", pages * page_tokens,
                         engine.tiers()[i]);
  }
  backend.open({.max_outputs = settings.serving.limits.max_sequences + settings.max_queue,
                .max_kv_tokens = largest_pool * page_tokens},
               shown);
  if (!settings.quiet) {
    fmt::print(stderr, "sluice: {} is served at {}; KV: {}; {}\n", settings.server.model.name, url,
               pools, policy);
  }
  static const std::atomic<bool> never{false};
  trace.computed_by(json_text(cpu_plan_as_json(plan.demand().cpu)));
  const TraceSession::Recording recording = trace.record();
  backend.run(engine.engine(), never);
}

}  // namespace

int run_serve(const CommandLine::Arguments& arguments) {
  CommandLine line(
      "sluice serve [options]",
      "Answers requests over HTTP as OpenAI's API has them, and shows a page to chat.");
  declare_options(line);
  if (!line.parse(arguments)) return 0;
  Settings settings = read_settings(line);
  const Accelerator accelerator = find_accelerator(read_device(line));
  RunPolicy policy(read_policy(line));
  const std::string& folder = line.get<std::string>("model");
  const Model model = open_model(folder);
  const std::unique_ptr<Tokenizer> tokenizer =
      has_tokenizer(model.files) ? open_tokenizer(model.files) : nullptr;
  ServingLimits& limits = settings.serving.limits;
  limits.max_model_len = settings.serving.max_model_len.value_or(model.config.max_positions);
  if (limits.max_model_len > model.config.max_positions)
    throw UsageError("--max-model-len {}: the model has {} positions", limits.max_model_len,
                     model.config.max_positions);
  settings.server.model = {.name = line.given("served-model-name")
                                       ? line.get<std::string>("served-model-name")
                                       : name_of(folder),
                           .tokenizer = tokenizer.get(),
                           .vocab_size = model.config.vocab_size,
                           .max_model_len = limits.max_model_len,
                           .generation = model.generation,
                           .render_chat = chat_renderer(line, model)};
  const ServingDemand demand{.model = model,
                             .dtype = settings.compute.dtype,
                             .cpu = settings.compute.cpu,
                             .tiers = settings.tiers,
                             .accelerator = accelerator,
                             .fusion = settings.fusion,
                             .limits = limits};
  RunPlan plan = [&] {
    const EndsSoonAfterInterrupt ends_soon;
    return plan_serving(demand, policy);
  }();
  if (const std::string unused = unused_pool(limits.kv_tokens, plan.policy_run()); !unused.empty())
    fmt::print(stderr, "sluice: {}\n", unused);
  if (settings.tiers.dry_run) {
    std::cout << format_tiers(plan.uses(),
                              settings.json ? OutputFormat::json : OutputFormat::table);
    plan.check_disk();
    return 0;
  }
  TraceSession trace(read_trace_folder(line));
  raise_open_files_limit();
  EngineBackend backend(tokenizer.get(), model.config);
  Server server(settings.server, backend);
  int code = 0;
  // Before StarPU binds the thread that starts it to a core.
  std::thread connections([&] {
    code = server.run(interrupt_flag());
    backend.finish();
  });
  try {
    trace.around(
        [&] {
          serve(plan, settings, model, trace, backend, server.url(), policy.describe());
          return 0;
        },
        settings.quiet);
  } catch (const std::exception& error) {
    server.fail(error.what());
    connections.join();
    throw;
  }
  connections.join();
  return code;
}

}  // namespace sluice
