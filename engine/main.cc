#include <fmt/core.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <iostream>
#include <map>
#include <new>
#include <string>
#include <vector>

#include "base/environment.h"
#include "base/error.h"
#include "base/nearest_word.h"
#include "engine/command_line.h"
#include "engine/interrupt.h"

namespace {

constexpr const char* help =
    "Sluice runs large language models on one machine whose parts differ.\n\n"
    "Usage: sluice COMMAND [options]\n\n"
    "  generate    continue a prompt, or a file of prompts\n"
    "  bench       measure tokens per second, beside what this machine can do at best\n"
    "  calibrate   measure how long a model's sublayers take here, for plan and policies\n"
    "  info        what Sluice sees of this machine\n"
    "  plan        what a policy would do on a machine, and how long it would take\n"
    "  simulate    run the same graphs and policies on a machine that is only described\n"
    "  trace       read what a run with --trace has left\n"
    "  make-model  write a folder with random weights of a known shape\n\n"
    "sluice COMMAND --help shows a command's options; sluice --version the version.\n";

int dispatch(const std::vector<std::string>& words) {
  using Command = int (*)(const sluice::CommandLine::Arguments&);
  static const std::map<std::string, Command> commands = {
      {"bench", sluice::run_bench},           {"calibrate", sluice::run_calibrate},
      {"generate", sluice::run_generate},     {"info", sluice::run_info},
      {"make-model", sluice::run_make_model}, {"plan", sluice::run_plan},
      {"simulate", sluice::run_simulate},     {"trace", sluice::run_trace}};
  if (words.empty()) throw sluice::UsageError("no command given; sluice --help lists them");
  if (words[0] == "--help" || words[0] == "-h" || words[0] == "help") {
    fmt::print("{}", help);
    return 0;
  }
  if (words[0] == "--version") {
    fmt::print("sluice {}\n", SLUICE_VERSION);
    return 0;
  }
  const auto command = commands.find(words[0]);
  if (command == commands.end()) {
    const std::string nearest = sluice::nearest_word(
        words[0],
        {"bench", "calibrate", "generate", "info", "make-model", "plan", "simulate", "trace"});
    throw sluice::UsageError(
        "unknown command {}; {}", words[0],
        nearest.empty() ? "sluice --help lists them" : "did you mean " + nearest + "?");
  }
  return command->second({words.begin() + 1, words.end()});
}

/// Whatever the message quotes (a path, an id), it stays one line.
void print_error(std::string message) {
  std::replace(message.begin(), message.end(), '\n', ' ');
  fmt::print(stderr, "sluice: {}\n", message);
}

}  // namespace

int main(int argc, char** argv) {
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
