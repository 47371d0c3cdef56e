#pragma once

#include <sys/types.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/temporary_folder.h"

namespace sluice::testing {

/// Words of a command line.
using Arguments = std::vector<std::string>;

/// Both, the second after the first.
Arguments operator+(Arguments left, const Arguments& right);

/// What a run of the program left.
struct CliResult {
  int exit_code = -1;  ///< -1: ended by a signal, or it hung and was killed
  std::string out;
  std::string err;
};

/// Where standard output goes.
enum class CliOutput { file, closed, full_disk };

/// The real program, started as a shell would, its output in files of its own. Killed at the end.
class CliProcess {
 public:
  explicit CliProcess(Arguments arguments, CliOutput output = CliOutput::file);
  /// Runs `program` with these arguments in place of sluice.
  CliProcess(const std::string& program, Arguments arguments, CliOutput output = CliOutput::file);
  ~CliProcess();
  CliProcess(const CliProcess&) = delete;
  CliProcess& operator=(const CliProcess&) = delete;

  /// The file that standard output goes to.
  std::string output_path() const { return folder_.file("out"); }

  /// The same of standard error.
  std::string error_path() const { return folder_.file("err"); }

  pid_t id() const { return pid_; }
  void send(int signal) const;
  /// Waits until it has ended; fails the test when that takes longer than a minute, with sanitizers
  /// three.
  CliResult wait();

 private:
  bool has_ended(int& status);

  test::TemporaryFolder folder_;
  pid_t pid_ = -1;
};

/// Path of the program.
std::string sluice_program();

CliResult run_cli(Arguments arguments, CliOutput output = CliOutput::file);

/// Passes if it failed with this exit code, nothing on stdout, and one line on stderr that begins
/// with "sluice: " and has all these parts.
void expect_failure(const CliResult& result, int exit_code, const std::vector<std::string>& parts);

/// Path and content of every file below a folder.
std::map<std::string, std::string> snapshot(const std::filesystem::path& folder);

/// Waits until the file has so many lines; fails the test when that takes as long as wait() allows.
void wait_for_lines(const std::string& path, std::size_t count);

std::string content_of(const std::string& path);
std::vector<std::string> lines_of(const std::string& text);
std::vector<nlohmann::json> json_lines(const std::string& text);

}  // namespace sluice::testing
