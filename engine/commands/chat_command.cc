#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "base/json.h"
#include "base/text.h"
#include "codelets/weights/plain.h"
#include "engine/commands/options/chat_template_option.h"
#include "engine/commands/options/command_line.h"
#include "engine/commands/options/compute_options.h"
#include "engine/commands/options/device_options.h"
#include "engine/commands/options/policy_options.h"
#include "engine/commands/options/sampling_options.h"
#include "engine/commands/options/tier_options.h"
#include "engine/commands/options/trace_options.h"
#include "engine/commands/subcommands.h"
#include "engine/console/interrupt.h"
#include "engine/console/standard_streams.h"
#include "engine/machine/compute.h"
#include "engine/requests/detokenizer.h"
#include "engine/run/run_engine.h"
#include "engine/run/serving_plan.h"
#include "engine/serve/openai_request.h"
#include "engine/trace/trace_session.h"
#include "models/model.h"

namespace sluice {
namespace {

namespace po = boost::program_options;

using Json = nlohmann::ordered_json;

void declare_options(CommandLine& line) {
  line.options().add_options()  //
      ("model,m", po::value<std::string>()->default_value("tiny"),
       "Hugging Face folder, or tiny: the embedded model")  //
      ("system", po::value<std::string>(),
       "text that the conversation begins with, as the system's");
  declare_chat_template_option(line, "Jinja file in place of the model's own template");
  line.options().add_options()  //
      ("max-tokens,n", po::value<std::int64_t>(),
       "tokens of an answer; without it, as many as the context has left")  //
      ("max-model-len", po::value<std::int64_t>(),
       "tokens that the conversation may have; without it, as many as the model allows and memory "
       "holds");
  declare_sampling_options(line);
  declare_compute_options(line);
  declare_fusion_option(line);
  declare_policy_options(line);
  declare_device_options(line);
  declare_trace_option(line);
  declare_tier_options(line, DryRunJson::own_option);
  line.options().add_options()("quiet,q", po::bool_switch(), "nothing but answers and errors");
}

/// What the command line asks for, checked as far as it can be without a model.
struct Settings {
  std::optional<std::string> system;
  std::optional<std::int64_t> max_tokens;     ///< nothing: what is left of the context
  std::optional<std::int64_t> max_model_len;  ///< nothing: as many as fit
  std::vector<std::string> stop;
  ComputeSettings compute;
  Fusion fusion = Fusion::layers;
  TierSettings tiers;
  bool json = false;
  bool quiet = false;
};

Settings read_settings(const CommandLine& line) {
  constexpr std::int64_t most_tokens = std::int64_t{1} << 30;
  Settings settings;
  if (line.given("system")) {
    settings.system = line.get<std::string>("system");
    if (const auto bad = find_invalid_utf8(*settings.system))
      throw UsageError("--system: invalid UTF-8 at byte {}; pass the text as UTF-8", *bad + 1);
  }
  if (line.given("max-tokens"))
    settings.max_tokens = in_range<std::int64_t>(line, "max-tokens", 1, most_tokens);
  if (line.given("max-model-len"))
    settings.max_model_len = in_range<std::int64_t>(line, "max-model-len", 2, most_tokens);
  settings.stop = read_stop(line);
  settings.compute = read_compute_settings(line);
  settings.fusion = read_fusion(line);
  settings.tiers = read_tier_settings(line);
  settings.json = read_dry_run_json(line, settings.tiers);
  settings.quiet = line.get<bool>("quiet");
  return settings;
}

/// One conversation at a time, as long as the limit says, or where it says nothing as long as fits.
RunPlan plan_conversation(const Model& model, const Settings& settings,
                          const Accelerator& accelerator, RunPolicy& policy) {
  constexpr std::int64_t shortest = 2048;
  const std::int64_t longest = model.config.max_positions;
  if (settings.max_model_len.value_or(0) > longest)
    throw UsageError("--max-model-len {}: the model has {} positions", *settings.max_model_len,
                     longest);
  ServingDemand demand{.model = model,
                       .dtype = settings.compute.dtype,
                       .cpu = settings.compute.cpu,
                       .tiers = settings.tiers,
                       .accelerator = accelerator,
                       .fusion = settings.fusion,
                       .limits = {.max_sequences = 1,
                                  .max_model_len = settings.max_model_len.value_or(longest),
                                  .kv_tokens = {}}};
  while (true) {
    try {
      return plan_serving(demand, policy);
    } catch (const UsageError&) {
      throw;
    } catch (const Error&) {
      std::int64_t& tokens = demand.limits.max_model_len;
      if (settings.max_model_len || tokens <= shortest) throw;
      tokens = std::max(shortest, tokens / 2);
    }
  }
}

/// What every request of the conversation has in common.
Request common_request(const CommandLine& line, const Settings& settings, const Model& model) {
  Request request;
  request.sampling = read_sampling(line, default_sampling(model.generation));
  request.stop = settings.stop;
  const std::vector<std::string>& own = model.generation.stop_strings;
  request.stop.insert(request.stop.end(), own.begin(), own.end());
  return request;
}

/// What is said of the conversation, and not by the model.
void say(std::string_view text) { fmt::print(stderr, "sluice: {}\n", one_line(text)); }

/// Messages from the first to the last, and the answers of an engine.
class Conversation {
 public:
  struct Parts {
    const ChatTemplate& chat_template;
    const Tokenizer& tokenizer;
    const GenerationConfig& generation;
    RunEngine& engine;
  };
  struct Totals {
    std::int64_t answers = 0;
    std::int64_t prompt_tokens = 0;
    std::int64_t known_tokens = 0;  ///< of these, whose KV was there
    std::int64_t output_tokens = 0;
  };

  /// `common` is what all requests have in common, with the tokens that an answer may have.
  Conversation(const Parts& parts, Request common, std::int64_t most_tokens,
               const std::optional<std::string>& system)
      : parts_(parts), common_(std::move(common)), most_tokens_(most_tokens) {
    if (system) beginning_.push_back({{"role", "system"}, {"content", *system}});
    reset();
  }

  void reset() { messages_ = beginning_; }

  /// Prints the answer as it comes. What cannot be answered is said, and forgotten.
  void ask(const std::string& text) {
    messages_.push_back({{"role", "user"}, {"content", text}});
    const std::optional<Request> request = next_request();
    const std::string answer = request ? answer_to(*request) : "";
    if (answer.empty()) {
      messages_.erase(messages_.size() - 1);
    } else {
      messages_.push_back({{"role", "assistant"}, {"content", answer}});
    }
  }

  const Totals& totals() const { return totals_; }

 private:
  std::optional<Request> next_request() const {
    Request request = common_;
    request.index = totals_.answers;
    request.id = std::to_string(totals_.answers);
    try {
      request.prompt = parts_.chat_template.render(messages_, options());
      request.prompt_tokens =
          parts_.tokenizer.encode(request.prompt, Tokenizer::SpecialTokens::leave_out);
    } catch (const Error& error) {
      say(error.what());
      return std::nullopt;
    }
    const std::int64_t length = std::ssize(request.prompt_tokens);
    if (length == 0 || length >= most_tokens_) {
      say(length == 0 ? "the chat template gives an empty prompt"
                      : fmt::format("the conversation would have {} tokens, the context is {}; "
                                    "/reset begins another one",
                                    length, most_tokens_));
      return std::nullopt;
    }
    request.max_new_tokens = std::min(common_.max_new_tokens, most_tokens_ - length);
    request.min_new_tokens =
        std::min(parts_.generation.min_new_tokens_after(length), request.max_new_tokens);
    return request;
  }

  std::string answer_to(const Request& request) {
    Completion last;
    Detokenizer detokenizer(
        &parts_.tokenizer,
        [](const Request&, std::int64_t, const std::string& text) {
          std::cout << text;
          flush_stdout();
        },
        [&](Completion completion) { last = std::move(completion); });
    RequestList source({request});
    const EngineStats stats =
        parts_.engine.engine().run(source, detokenizer.events(), interrupt_flag());
    if (last.finish_reason == FinishReason::rejected) throw Error("{}", last.problem);
    std::cout << '\n';
    flush_stdout();
    ++totals_.answers;
    totals_.prompt_tokens += stats.prompt_tokens;
    totals_.known_tokens += stats.prefix_hit_tokens;
    totals_.output_tokens += stats.generated_tokens;
    if (last.finish_reason == FinishReason::length &&
        request.max_new_tokens < common_.max_new_tokens)
      say(fmt::format("the context of {} tokens is full; /reset begins another conversation",
                      most_tokens_));
    return last.text;
  }

  static ChatOptions options() {
    ChatOptions options;
    options.add_generation_prompt = true;
    return options;
  }

  Parts parts_;
  Request common_;
  std::int64_t most_tokens_;
  Json beginning_ = Json::array();
  Json messages_;
  Totals totals_;
};

enum class Command : std::uint8_t { none, quit, reset, unknown };

Command command_of(std::string_view text) {
  if (!text.starts_with('/')) return Command::none;
  if (text == "/quit") return Command::quit;
  return text == "/reset" ? Command::reset : Command::unknown;
}

bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \t") == std::string_view::npos;
}

/// Reads lines and lets them be answered until one ends it. Returns the exit code.
int converse(Conversation& conversation, RunEngine& engine) {
  const bool is_terminal = isatty(STDIN_FILENO) == 1;
  InputLines lines(STDIN_FILENO);
  while (true) {
    if (is_terminal) fmt::print(stderr, "> ");
    std::optional<std::string> text;
    engine.executor().rest([&] { text = lines.next(interrupt_flag()); });
    if (!text) break;
    if (is_blank(*text)) continue;
    if (const auto bad = find_invalid_utf8(*text)) {
      say(fmt::format("invalid UTF-8 at byte {} of the line, which is left out", *bad + 1));
      continue;
    }
    const Command command = command_of(*text);
    if (command == Command::quit) return 0;
    if (command == Command::reset) conversation.reset();
    if (command == Command::unknown)
      say(
          fmt::format("there is no {}; /quit ends, /reset begins another conversation, and a blank "
                      "ahead of the line makes it a message",
                      *text));
    if (command != Command::none) continue;
    conversation.ask(*text);
    const int signal = take_interrupt();  // Ctrl-C has ended the answer
    if (signal != 0 && signal != SIGINT) return interrupted_exit_code;
  }
  if (is_terminal) fmt::print(stderr, "\n");
  return interrupt_flag() ? interrupted_exit_code : 0;
}

/// On the thread that starts StarPU.
int run(RunPlan& plan, const Settings& settings, const Model& model, Request common,
        const ChatTemplate& chat_template, const Tokenizer& tokenizer, TraceSession& trace,
        const std::string& policy) {
  LoadedRun run(plan);
  EngineOptions options = engine_options(model);
  options.max_sequences = 1;
  RunEngine engine(run.model(), run.kv(), plan.policy_run(), options,
                   {.fusion = settings.fusion, .sharing = KvPool::Sharing::on});
  const Workload& workload = plan.demand().workload;
  const std::int64_t most_tokens =
      std::min(settings.max_model_len.value_or(model.config.max_positions),
               workload.input_tokens + workload.output_tokens);
  common.max_new_tokens = settings.max_tokens.value_or(most_tokens);
  Conversation conversation({chat_template, tokenizer, model.generation, engine}, std::move(common),
                            most_tokens, settings.system);
  if (!settings.quiet)
    say(
        fmt::format("{} tokens of context; /quit ends, /reset begins another conversation, Ctrl-C "
                    "ends an answer; {}",
                    most_tokens, policy));
  trace.computed_by(json_text(cpu_plan_as_json(plan.demand().cpu)));
  const TraceSession::Recording recording = trace.record();
  const int code = converse(conversation, engine);
  const Conversation::Totals& totals = conversation.totals();
  if (!settings.quiet)
    say(fmt::format("answers: {}, {} tokens; prompts: {} tokens, {} of them computed before",
                    totals.answers, totals.output_tokens, totals.prompt_tokens,
                    totals.known_tokens));
  return code;
}

}  // namespace

int run_chat(const CommandLine::Arguments& arguments) {
  CommandLine line(
      "sluice chat [options]",
      "Talks to a model. Each line of standard input is a message; /quit or the end of the input\n"
      "ends the conversation, /reset begins another one, Ctrl-C ends an answer.");
  declare_options(line);
  if (!line.parse(arguments)) return 0;
  const Settings settings = read_settings(line);
  const Accelerator accelerator = find_accelerator(read_device(line));
  RunPolicy policy(read_policy(line));
  const Model model = open_model(line.get<std::string>("model"));
  const ChatTemplate chat_template = open_chat_template(line, model.files);
  if (!has_tokenizer(model.files))
    throw Error("{} has no tokenizer files, which a chat needs", line.get<std::string>("model"));
  const std::unique_ptr<Tokenizer> tokenizer = open_tokenizer(model.files);
  Request common = common_request(line, settings, model);
  RunPlan plan = [&] {
    const EndsSoonAfterInterrupt ends_soon;
    return plan_conversation(model, settings, accelerator, policy);
  }();
  if (settings.tiers.dry_run) {
    std::cout << format_tiers(plan.uses(),
                              settings.json ? OutputFormat::json : OutputFormat::table);
    plan.check_disk();
    return 0;
  }
  TraceSession trace(read_trace_folder(line));
  return trace.around(
      [&] {
        return run(plan, settings, model, std::move(common), chat_template, *tokenizer, trace,
                   policy.describe());
      },
      settings.quiet);
}

}  // namespace sluice
