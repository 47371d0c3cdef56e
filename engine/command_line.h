#pragma once

#include <boost/program_options.hpp>
#include <cstdint>
#include <string>
#include <vector>

namespace sluice {

/// The command line of one subcommand.
class CommandLine {
 public:
  using Arguments = std::vector<std::string>;

  /// `usage` is the first line of the help, `description` what follows it.
  CommandLine(std::string usage, std::string description);

  boost::program_options::options_description& options() { return options_; }

  /// Lets one argument stand without an option.
  void accept_operand() { accepts_operand_ = true; }
  /// That argument; empty without one.
  const std::string& operand() const { return operand_; }

  /// Parses what follows the subcommand. Returns false after printing the help. Throws UsageError:
  /// an unknown option (with the nearest known one), a missing or malformed value, a stray
  /// argument.
  bool parse(const Arguments& arguments);

  bool given(const std::string& name) const {
    return values_.count(name) != 0 && !values_[name].defaulted();
  }
  template <typename T>
  const T& get(const std::string& name) const {
    return values_[name].as<T>();
  }

 private:
  std::string usage_;
  std::string description_;
  bool accepts_operand_ = false;
  std::string operand_;
  boost::program_options::options_description options_;
  boost::program_options::variables_map values_;
};

/// "20GiB", "512MiB", "1.5GB" or plain bytes. Throws UsageError that names `option`.
std::uint64_t parse_size_bytes(const std::string& text, const std::string& option);

/// The subcommands; each returns the exit code and throws Error or UsageError.
int run_bench(const CommandLine::Arguments& arguments);
int run_calibrate(const CommandLine::Arguments& arguments);
int run_generate(const CommandLine::Arguments& arguments);
int run_info(const CommandLine::Arguments& arguments);
int run_make_model(const CommandLine::Arguments& arguments);
int run_plan(const CommandLine::Arguments& arguments);
int run_simulate(const CommandLine::Arguments& arguments);
int run_tokenize(const CommandLine::Arguments& arguments);
int run_trace(const CommandLine::Arguments& arguments);

}  // namespace sluice
