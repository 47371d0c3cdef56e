#include "codelets/runtime/stand_in.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <malloc.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>

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

/// A port of the loopback interface that nothing listens on.
int free_port() {
  const int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  const bool found = descriptor >= 0 && bind(descriptor, generic, size) == 0 &&
                     getsockname(descriptor, generic, &size) == 0;
  const int reason = errno;
  if (descriptor >= 0) close(descriptor);
  if (!found) throw Error("the stand-in accelerator finds no free port: {}", std::strerror(reason));
  return ntohs(address.sin_port);
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

/// Waits until StarPU in the other process takes connections. Its own way is to try again after a
/// second, with a line on stderr.
void wait_for_listener(int port) {
  const std::string name = fmt::format("/tmp/starpu-{}.socket", port);
  constexpr std::string_view listening = "00010000";  // __SO_ACCEPTCON
  while (true) {
    std::ifstream sockets("/proc/net/unix");
    for (std::string line; std::getline(sockets, line);) {
      if (line.ends_with(name) && line.find(listening) != std::string::npos) return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

fs::path make_folder() {
  std::string name = (fs::temp_directory_path() / "sluice-stand-in-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr)
    throw Error("the stand-in accelerator cannot make the folder {}: {}", name,
                std::strerror(errno));
  return name;
}

/// Another process's sockets, as descriptors of ours; none where the system does not let us.
std::vector<int> sockets_of(pid_t process) {
  std::vector<int> sockets;
  const auto handle = static_cast<int>(syscall(SYS_pidfd_open, process, 0));
  if (handle < 0) return sockets;
  std::error_code ignored;
  const fs::path folder = fmt::format("/proc/{}/fd", process);
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
    if (!fs::read_symlink(entry.path(), ignored).string().starts_with("socket:")) continue;
    const int theirs = std::stoi(entry.path().filename().string());
    const auto ours = static_cast<int>(syscall(SYS_pidfd_getfd, handle, theirs, 0));
    if (ours >= 0) sockets.push_back(ours);
  }
  close(handle);
  return sockets;
}

}  // namespace

StandIn::StandIn(std::uint64_t memory_bytes, const std::function<void()>& prepare)
    : memory_mb_(memory_bytes >> 20), port_(free_port()) {
#ifndef STARPU_USE_TCPIP_MASTER_SLAVE
  throw Error(
      "this StarPU was built without --enable-tcpip-master-slave, which the stand-in accelerator "
      "needs; scripts/starpu.sh builds one that has it");
#endif
  folder_ = make_folder();
  variables_.set("STARPU_TCPIP_MS_SLAVES", "1");
  variables_.set("STARPU_TCPIP_MS_PORT", std::to_string(port_));
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
    if (getppid() == parent) serve(prepare);
    _exit(1);
  }
  watch(process_);
}

void StandIn::serve(const std::function<void()>& prepare) const {
  prctl(PR_SET_NAME, "sluice-stand-in");
  for (const int signal_number : {SIGINT, SIGTERM, SIGHUP}) signal(signal_number, SIG_IGN);
  signal(SIGABRT, SIG_DFL);
  // NOLINTBEGIN(concurrency-mt-unsafe): one thread
  setenv("STARPU_TCPIP_MS_MASTER", "127.0.0.1", 1);
  setenv("STARPU_HOME", (folder_ / "stand-in").c_str(), 1);
  unsetenv("STARPU_FXT_TRACE");
  unsetenv("STARPU_LIMIT_CPU_MEM");  // a disk's window in the other process
  // NOLINTEND(concurrency-mt-unsafe)
  take_memory(memory_mb_ << 20);
  prepare();
  std::atexit([] { _exit(0); });  // StarPU calls exit(); what was made before the fork is not ours
  wait_for_listener(port_);
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
  its_sockets_ = sockets_of(process_);
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
