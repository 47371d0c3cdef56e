#include "codelets/runtime/stand_in.h"

#include <fmt/ranges.h>
#include <malloc.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/memory.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

/// The process whose end is a failure; 0: none.
std::atomic<pid_t> watched{0};
struct sigaction abort_before {};

void say(std::string_view text) {
  const ssize_t ignored = write(STDERR_FILENO, text.data(), text.size());
  static_cast<void>(ignored);
}

/// Ends this process if the other one has ended, or does so within `patience_ms`. May be called
/// from signal handlers.
void end_with_stand_in(int patience_ms) {
  for (int waited_ms = 0;; ++waited_ms) {
    const pid_t process = watched.load();
    if (process == 0) return;
    int status = 0;
    const pid_t ended = waitpid(process, &status, WNOHANG);
    if (ended < 0) pause();  // another thread has seen it, and ends us
    if (ended == process) {
      say("sluice: the stand-in accelerator's process has ended, ");
      say(WIFSIGNALED(status) ? "killed by a signal" : "by itself");
      say("; finished outputs are on disk; run again\n");
      _exit(1);
    }
    if (waited_ms >= patience_ms) return;
    const timespec millisecond{.tv_sec = 0, .tv_nsec = 1'000'000};
    nanosleep(&millisecond, nullptr);
  }
}

/// Its sockets close a moment before it can be waited for.
constexpr int death_patience_ms = 200;

void on_child(int /*signal*/) {
  const int before = errno;
  end_with_stand_in(0);
  errno = before;
}
void on_broken_pipe(int /*signal*/) {
  end_with_stand_in(death_patience_ms);
  signal(SIGPIPE, SIG_DFL);
  raise(SIGPIPE);
}
void on_abort(int signal) {
  end_with_stand_in(death_patience_ms);
  sigaction(SIGABRT, &abort_before, nullptr);
  raise(signal);
}

void watch(pid_t process) {
  watched = process;
  struct sigaction action {};
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART | SA_NOCLDSTOP;
  action.sa_handler = on_child;
  sigaction(SIGCHLD, &action, nullptr);
  action.sa_handler = on_broken_pipe;
  sigaction(SIGPIPE, &action, nullptr);
  action.sa_handler = on_abort;
  sigaction(SIGABRT, &action, &abort_before);
  on_child(SIGCHLD);  // it may have ended before
}

/// One end of a connection, of which StarPU wants three.
using Sockets = std::array<int, 3>;

/// Three connections between this process and the one that it forks. Nothing listens anywhere, so
/// nobody else can connect.
std::pair<Sockets, Sockets> connected_sockets() {
  std::pair<Sockets, Sockets> ends;
  for (std::size_t i = 0; i < ends.first.size(); ++i) {
    std::array<int, 2> pair{};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.data()) != 0)
      throw Error("the stand-in accelerator gets no sockets: {}", std::strerror(errno));
    ends.first[i] = pair[0];
    ends.second[i] = pair[1];
  }
  return ends;
}

std::string as_variable(const Sockets& sockets) {
  return fmt::format("{}", fmt::join(sockets, ","));
}

/// An accelerator's memory is there before anything is moved to it, and stays: takes its pages from
/// the system now, unless that leaves too little to the host, and gives none back.
void take_memory(std::uint64_t bytes) {
  mallopt(M_ARENA_MAX, 1);
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
  constexpr std::size_t huge_page = std::size_t{2} << 20;
  void* memory = std::aligned_alloc(huge_page, (bytes + huge_page - 1) / huge_page * huge_page);
  if (memory == nullptr) return;
  madvise(memory, bytes, MADV_HUGEPAGE);
  if (available_memory_bytes() > 2 * bytes) madvise(memory, bytes, MADV_POPULATE_WRITE);
  std::free(memory);
}

fs::path make_folder() {
  std::string name = (fs::temp_directory_path() / "sluice-stand-in-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr)
    throw Error("the stand-in accelerator cannot make the folder {}: {}", name,
                std::strerror(errno));
  return name;
}

}  // namespace

StandIn::StandIn(std::uint64_t memory_bytes, const std::function<void()>& prepare)
    : memory_mb_(memory_bytes >> 20) {
#if !defined STARPU_USE_TCPIP_MASTER_SLAVE || !defined STARPU_TCPIP_MS_TAKES_SOCKETS
  throw Error(
      "this StarPU was built without --enable-tcpip-master-slave, or without Sluice's patches, "
      "which the stand-in accelerator needs; scripts/starpu.sh builds one that has both");
#endif
  folder_ = make_folder();
  const auto [ours, theirs] = connected_sockets();
  variables_.set("STARPU_TCPIP_MS_SLAVES", "1");
  variables_.set("STARPU_TCPIP_MS_SOCKETS", as_variable(ours));  // StarPU closes them at its end
  variables_.set("STARPU_NTCPIPMSTHREADS", "1");
  variables_.set("STARPU_LIMIT_TCPIP_MS_MEM", std::to_string(memory_mb_));
  // Each process has files of its own: both measure the link if one does.
  variables_.set("STARPU_HOME", folder_ / "host");
  std::fflush(nullptr);
  const pid_t parent = getpid();
  process_ = fork();
  if (process_ < 0)
    throw Error("the stand-in accelerator's process cannot be started: {}", std::strerror(errno));
  if (process_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (const int descriptor : ours) close(descriptor);
    if (getppid() == parent) serve(as_variable(theirs), prepare);
    _exit(1);
  }
  its_sockets_ = theirs;
  watch(process_);
}

void StandIn::serve(const std::string& sockets, const std::function<void()>& prepare) const {
  prctl(PR_SET_NAME, "sluice-stand-in");
  for (const int signal_number : {SIGINT, SIGTERM, SIGHUP}) signal(signal_number, SIG_IGN);
  signal(SIGABRT, SIG_DFL);
  // NOLINTBEGIN(concurrency-mt-unsafe): one thread
  setenv("STARPU_TCPIP_MS_MASTER", "forked", 1);  // any name: this is not the master
  setenv("STARPU_TCPIP_MS_SOCKETS", sockets.c_str(), 1);
  setenv("STARPU_HOME", (folder_ / "stand-in").c_str(), 1);
  unsetenv("STARPU_FXT_TRACE");
  unsetenv("STARPU_LIMIT_CPU_MEM");  // a disk's window in the other process
  // NOLINTEND(concurrency-mt-unsafe)
  take_memory(memory_mb_ << 20);
  prepare();
  std::atexit([] { _exit(0); });  // StarPU calls exit(); what was made before the fork is not ours
  starpu_conf conf;
  if (starpu_conf_init(&conf) != 0) return;
  conf.ncpus = 1;
  conf.ncuda = 0;
  conf.nopencl = 0;
  conf.ntcpip_ms = 1;
  conf.catch_signals = 0;
  const int ignored = starpu_init(&conf);  // does not return, unless it fails
  static_cast<void>(ignored);
}

void StandIn::started() {
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
  int worker = -1;
  if (starpu_worker_get_ids_by_type(STARPU_TCPIP_MS_WORKER, &worker, 1) != 1)
    throw Error("StarPU does not see the stand-in accelerator");
  node_ = starpu_worker_get_memory_node(static_cast<unsigned>(worker));
  const starpu_ssize_t found_bytes = starpu_memory_get_total(node_);
  if (found_bytes == static_cast<starpu_ssize_t>(memory_mb_ << 20)) return;
  throw Error(
      "this StarPU does not limit the stand-in accelerator's memory; scripts/starpu.sh builds one "
      "that does");
}

void StandIn::expect_end() noexcept { watched = 0; }

StandIn::~StandIn() {
  watched = 0;
  kill(process_, SIGKILL);  // it is on its way out, or StarPU never started here
  waitpid(process_, nullptr, 0);
  for (const int descriptor : its_sockets_) close(descriptor);
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
  for (const int signal_number : {SIGCHLD, SIGPIPE}) signal(signal_number, SIG_DFL);
  sigaction(SIGABRT, &abort_before, nullptr);
}

}  // namespace sluice
