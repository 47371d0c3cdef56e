#pragma once

#include "engine/commands/options/command_line.h"

namespace sluice {

/// The subcommands; each returns the exit code and throws Error or UsageError.
int run_bench(const CommandLine::Arguments& arguments);
int run_calibrate(const CommandLine::Arguments& arguments);
int run_chat(const CommandLine::Arguments& arguments);
int run_generate(const CommandLine::Arguments& arguments);
int run_info(const CommandLine::Arguments& arguments);
int run_make_model(const CommandLine::Arguments& arguments);
int run_plan(const CommandLine::Arguments& arguments);
int run_quantize(const CommandLine::Arguments& arguments);
int run_replay(const CommandLine::Arguments& arguments);
int run_serve(const CommandLine::Arguments& arguments);
int run_simulate(const CommandLine::Arguments& arguments);
int run_tokenize(const CommandLine::Arguments& arguments);
int run_trace(const CommandLine::Arguments& arguments);
int run_tune(const CommandLine::Arguments& arguments);

}  // namespace sluice
