#pragma once

#include <boost/program_options.hpp>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace sluice {

/// What a command's help says, for shells' completion and the man page.
struct CommandHelp {
  struct Option {
    std::string name;    ///< without --
    char letter = '\0';  ///< as in -h; none: '\0'
    std::string text;
    bool takes_value = false;
    std::string value;  ///< how the help writes it, such as "arg (=4)"
  };
  std::string usage;
  std::string description;
  bool takes_operand = false;
  std::vector<Option> options;
};

/// While one lives, CommandLine::parse() on its thread parses nothing: it leaves the command's help
/// here and returns false.
class HelpCollector {
 public:
  HelpCollector();
  ~HelpCollector();
  HelpCollector(const HelpCollector&) = delete;
  HelpCollector& operator=(const HelpCollector&) = delete;

  const CommandHelp& found() const { return found_; }
  void set(CommandHelp help) { found_ = std::move(help); }

 private:
  CommandHelp found_;
};

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

  /// Parses what follows the subcommand. Returns false after printing the help, and where a
  /// HelpCollector wants it instead. Throws UsageError:
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
  CommandHelp help() const;

  std::string usage_;
  std::string description_;
  bool accepts_operand_ = false;
  std::string operand_;
  boost::program_options::options_description options_;
  boost::program_options::variables_map values_;
};

/// "20GiB", "512MiB", "1.5GB" or plain bytes. Throws UsageError that names `option`.
std::uint64_t parse_size_bytes(const std::string& text, const std::string& option);

}  // namespace sluice
