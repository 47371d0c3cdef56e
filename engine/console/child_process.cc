#include "engine/console/child_process.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "base/error.h"
#include "engine/console/interrupt.h"

extern char** environ;  // NOLINT(readability-redundant-declaration): not in every unistd.h

namespace sluice {
namespace {

/// One direction of a pipe, closed at the end.
class Pipe {
 public:
  Pipe() {
    if (pipe2(ends_.data(), O_CLOEXEC) != 0)
      throw Error("cannot make a pipe: {}", std::strerror(errno));
  }
  ~Pipe() {
    close_writing();
    if (ends_[0] >= 0) close(ends_[0]);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;

  int reading() const { return ends_[0]; }
  int writing() const { return ends_[1]; }
  void close_writing() {
    if (ends_[1] >= 0) close(ends_[1]);
    ends_[1] = -1;
  }

 private:
  std::array<int, 2> ends_{-1, -1};
};

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> all;
  all.reserve(words.size() + 1);
  for (std::string& word : words) all.push_back(word.data());
  all.push_back(nullptr);
  return all;
}

std::vector<std::string> with_environment(const std::map<std::string, std::string>& more) {
  std::vector<std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (more.count(text.substr(0, text.find('='))) == 0) all.push_back(text);
  }
  for (const auto& [name, value] : more) all.push_back(fmt::format("{}={}", name, value));
  return all;
}

/// Reads both until both are at their end, which comes soon after Ctrl-C: it is passed on.
void read_all(pid_t child, int out_fd, int err_fd, ChildResult& result) {
  constexpr int look_every_ms = 200;
  bool is_told = false;
  std::array<pollfd, 2> fds = {pollfd{out_fd, POLLIN, 0}, pollfd{err_fd, POLLIN, 0}};
  std::array<std::string*, 2> texts = {&result.out, &result.err};
  std::array<char, 65536> buffer{};
  while (fds[0].fd >= 0 || fds[1].fd >= 0) {
    const int num_ready = poll(fds.data(), fds.size(), look_every_ms);
    if (interrupt_flag() && !is_told) is_told = kill(child, SIGTERM) == 0;
    if (num_ready <= 0) continue;
    for (std::size_t i = 0; i < fds.size(); ++i) {
      if (fds[i].fd < 0 || fds[i].revents == 0) continue;
      const ssize_t count = read(fds[i].fd, buffer.data(), buffer.size());
      if (count > 0) texts[i]->append(buffer.data(), static_cast<std::size_t>(count));
      if (count == 0 || (count < 0 && errno != EINTR)) fds[i].fd = -1;
    }
  }
}

}  // namespace

ChildResult run_child(const std::string& program, const std::vector<std::string>& arguments,
                      const std::map<std::string, std::string>& environment) {
  Pipe out;
  Pipe err;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, out.writing(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, err.writing(), STDERR_FILENO);
  std::vector<std::string> words = {program};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<std::string> variables = with_environment(environment);
  pid_t child = 0;
  const int status = posix_spawn(&child, program.c_str(), &actions, nullptr, pointers(words).data(),
                                 pointers(variables).data());
  posix_spawn_file_actions_destroy(&actions);
  if (status != 0) throw Error("cannot start {}: {}", program, std::strerror(status));
  out.close_writing();
  err.close_writing();
  ChildResult result;
  read_all(child, out.reading(), err.reading(), result);
  int ended = 0;
  while (waitpid(child, &ended, 0) < 0 && errno == EINTR) {
  }
  result.exit_code = WIFSIGNALED(ended) ? 128 + WTERMSIG(ended) : WEXITSTATUS(ended);
  return result;
}

}  // namespace sluice
