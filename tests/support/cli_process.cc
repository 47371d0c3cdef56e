#include "tests/support/cli_process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>

namespace sluice::testing {
namespace {

/// What takes longer hangs.
constexpr std::chrono::seconds kLongest{180};

/// Calls `done` until it is true; false when that takes too long.
template <typename Condition>
bool poll_until(const Condition& done) {
  const auto start = std::chrono::steady_clock::now();
  while (!done()) {
    if (std::chrono::steady_clock::now() - start > kLongest) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

}  // namespace

Arguments operator+(Arguments left, const Arguments& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

std::string sluice_program() {
  const char* elsewhere = std::getenv("SLUICE_TEST_PROGRAM");  // NOLINT(concurrency-mt-unsafe)
  return elsewhere == nullptr ? SLUICE_PROGRAM : elsewhere;
}

CliProcess::CliProcess(Arguments arguments, CliOutput output)
    : CliProcess(sluice_program(), std::move(arguments), output) {}

CliProcess::CliProcess(const std::string& program, Arguments arguments, CliOutput output) {
  arguments.insert(arguments.begin(), program);
  std::vector<char*> words;
  words.reserve(arguments.size() + 1);
  for (std::string& argument : arguments) words.push_back(argument.data());
  words.push_back(nullptr);

  constexpr int create = O_WRONLY | O_CREAT | O_TRUNC;
  const std::string out = output == CliOutput::full_disk ? "/dev/full" : output_path();
  const std::string err = folder_.file("err");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, err.c_str(), create, 0666);
  if (output == CliOutput::closed) {
    posix_spawn_file_actions_addclose(&actions, STDOUT_FILENO);
  } else {
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, out.c_str(), create, 0666);
  }
  const int status = posix_spawn(&pid_, program.c_str(), &actions, nullptr, words.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (status != 0) {
    pid_ = -1;
    ADD_FAILURE() << program << " cannot be started: " << std::strerror(status);
  }
}

CliProcess::~CliProcess() {
  if (pid_ < 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

void CliProcess::send(int signal) const {
  if (pid_ > 0) kill(pid_, signal);
}

bool CliProcess::has_ended(int& status) {
  if (waitpid(pid_, &status, WNOHANG) != pid_) return false;
  pid_ = -1;
  return true;
}

CliResult CliProcess::wait() {
  int status = 0;
  CliResult result;
  if (pid_ < 0) return result;
  if (poll_until([&] { return has_ended(status); })) {
    if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
  } else {
    ADD_FAILURE() << "still running after " << kLongest.count() << " s";
  }
  result.out = content_of(output_path());
  result.err = content_of(folder_.file("err"));
  return result;
}

CliResult run_cli(Arguments arguments, CliOutput output) {
  return CliProcess(std::move(arguments), output).wait();
}

void expect_failure(const CliResult& result, int exit_code, const std::vector<std::string>& parts) {
  EXPECT_EQ(result.exit_code, exit_code) << result.err;
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(lines_of(result.err).size(), 1U) << result.err;
  EXPECT_EQ(result.err.find("sluice: "), 0U) << result.err;
  EXPECT_TRUE(result.err.ends_with('\n')) << result.err;
  for (const std::string& part : parts) {
    EXPECT_NE(result.err.find(part), std::string::npos)
        << "'" << part << "' is not in: " << result.err;
  }
}

std::map<std::string, std::string> snapshot(const std::filesystem::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    files[entry.path().string()] = entry.is_regular_file() ? content_of(entry.path()) : "";
  }
  return files;
}

void wait_for_lines(const std::string& path, std::size_t count) {
  const auto has_lines = [&] {
    const std::string text = content_of(path);
    return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n')) >= count;
  };
  EXPECT_TRUE(poll_until(has_lines))
      << path << " has no " << count << " lines after " << kLongest.count() << " s";
}

std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::vector<nlohmann::json> json_lines(const std::string& text) {
  std::vector<nlohmann::json> values;
  for (const std::string& line : lines_of(text)) values.push_back(nlohmann::json::parse(line));
  return values;
}

}  // namespace sluice::testing
