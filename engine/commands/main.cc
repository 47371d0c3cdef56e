#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <iostream>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "base/environment.h"
#include "base/error.h"
#include "base/nearest_word.h"
#include "base/text.h"
#include "engine/commands/build_kind.h"
#include "engine/commands/foreign_variables.h"
#include "engine/commands/manual.h"
#include "engine/commands/options/command_line.h"
#include "engine/commands/subcommands.h"
#include "engine/console/interrupt.h"

namespace {

struct Command {
  const char* name;
  const char* summary;
  int (*run)(const sluice::CommandLine::Arguments& arguments);
};
constexpr std::array<Command, 14> commands = {{
    {"generate", "continue a prompt, or a file of prompts", sluice::run_generate},
    {"chat", "talk to a model in the terminal", sluice::run_chat},
    {"serve", "answer requests over HTTP, as OpenAI's API has them", sluice::run_serve},
    {"replay", "run a trace of requests as they arrive, and report latency and throughput",
     sluice::run_replay},
    {"bench", "measure tokens per second, beside what this machine can do at best",
     sluice::run_bench},
    {"calibrate", "measure how long a model's sublayers take here, for plan and policies",
     sluice::run_calibrate},
    {"tune", "find how the cores are best cut into groups, for prompts and for decoding",
     sluice::run_tune},
    {"info", "what Sluice sees of this machine", sluice::run_info},
    {"plan", "what a policy would do on a machine, and how long it would take", sluice::run_plan},
    {"simulate", "run the same graphs and policies on a machine that is only described",
     sluice::run_simulate},
    {"tokenize", "show the tokens of a text, or the text of tokens", sluice::run_tokenize},
    {"trace", "read what a run with --trace has left", sluice::run_trace},
    {"make-model", "write a folder with random weights of a known shape", sluice::run_make_model},
    {"quantize", "write a model with its weights in 4 or 8 bits", sluice::run_quantize},
}};

/// Every command's help, without running it.
std::vector<sluice::NamedCommand> describe_commands() {
  std::vector<sluice::NamedCommand> described;
  for (const Command& command : commands) {
    const sluice::HelpCollector collector;
    command.run({});
    described.push_back({command.name, command.summary, collector.found()});
  }
  return described;
}

/// What is installed for shells and man: words that no help lists.
int print_manual(const std::vector<std::string>& words) {
  const std::string& what = words[0] == "completion" && words.size() == 2 ? words[1] : words[0];
  if (what == "man" && words.size() == 1) {
    std::cout << sluice::man_page(describe_commands(), sluice::version_number());
  } else if (what == "bash") {
    std::cout << sluice::bash_completion(describe_commands());
  } else if (what == "zsh") {
    std::cout << sluice::zsh_completion(describe_commands());
  } else {
    throw sluice::UsageError(
        "expected sluice man, sluice completion bash or sluice completion zsh");
  }
  return 0;
}

void print_help() {
  fmt::print(
      "Sluice runs large language models on one machine whose parts differ.\n\n"
      "Usage: sluice COMMAND [options]\n\n");
  for (const Command& command : commands) fmt::print("  {:<12}{}\n", command.name, command.summary);
  fmt::print("\nsluice help COMMAND shows its options; sluice --version the version.\n");
}

const Command& find_command(const std::string& name) {
  std::vector<std::string> names;
  for (const Command& command : commands) {
    if (name == command.name) return command;
    names.emplace_back(command.name);
  }
  const std::string nearest = sluice::nearest_word(name, names);
  throw sluice::UsageError(
      "unknown command {}; {}", name,
      nearest.empty() ? "sluice --help lists them" : "did you mean " + nearest + "?");
}

int dispatch(const std::vector<std::string>& words) {
  if (words.empty()) throw sluice::UsageError("no command given; sluice --help lists them");
  if (words[0] == "help" && words.size() > 1) return find_command(words[1]).run({"--help"});
  if (words[0] == "--help" || words[0] == "-h" || words[0] == "help") {
    print_help();
    return 0;
  }
  if (words[0] == "--version") {
    fmt::print("{}", sluice::version_text());
    return 0;
  }
  if (words[0] == "completion" || words[0] == "man") return print_manual(words);
  return find_command(words[0]).run({words.begin() + 1, words.end()});
}

/// The next file that is opened would get the number of a standard stream that is closed, and what
/// is printed would go into it. Writing to standard output fails as before.
void hold_closed_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(stream, F_GETFD) >= 0) continue;
    const int held = open("/dev/null", stream == STDERR_FILENO ? O_WRONLY : O_RDONLY);
    if (held >= 0 && held != stream) close(held);
  }
}

/// What is said on a stderr that cannot be written, as on a full disk, is lost; else printing would
/// throw, and end the run.
void outlive_stderr() {
  cookie_io_functions_t operations{};
  operations.write = [](void*, const char* text, std::size_t size) {
    const ssize_t ignored = write(STDERR_FILENO, text, size);
    static_cast<void>(ignored);
    return static_cast<ssize_t>(size);
  };
  FILE* stream = fopencookie(nullptr, "w", operations);
  if (stream == nullptr) return;
  std::setvbuf(stream, nullptr, _IONBF, 0);
  stderr = stream;
}

/// Whatever the message quotes (a path, an id), it stays one line.
void print_error(std::string_view message) {
  fmt::print(stderr, "sluice: {}\n", sluice::one_line(message));
}

}  // namespace

int main(int argc, char** argv) {
  hold_closed_streams();
  outlive_stderr();
  sluice::ignore_starpu_variables();
  sluice::install_signal_handlers();
  try {
    const int status = dispatch({argv + 1, argv + argc});
    std::cout.flush();
    if (!std::cout || std::fflush(stdout) != 0) {
      throw sluice::Error("cannot write to standard output: {}", std::strerror(errno));
    }
    return status;
  } catch (const sluice::Interrupted& error) {
    print_error(error.what());
    return sluice::interrupted_exit_code;
  } catch (const sluice::UsageError& error) {
    print_error(error.what());
    return 2;
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "sluice: out of memory; use a smaller model, batch or context\n");
  } catch (const std::exception& error) {
    print_error(error.what());
  }
  return 1;
}
