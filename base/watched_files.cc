#include "base/watched_files.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <link.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <deque>

#include "base/text.h"

namespace sluice {
namespace {

// The handler may use nothing but these atomics, write() and _exit().
struct Slot {
  std::atomic<bool> taken{false};
  std::atomic<std::uintptr_t> begin{0};
  std::atomic<std::uintptr_t> end{0};
  std::atomic<const char*> message{nullptr};
};
constexpr std::size_t num_slots = 4096;
std::array<Slot, num_slots> slots;
std::atomic<const char*> loading{nullptr};
static_assert(std::atomic<const char*>::is_always_lock_free);

std::string message_for(const std::string& path) {
  return one_line(fmt::format(
             "sluice: {}: it became shorter while it was read, or its disk failed; get it again",
             path)) +
         "\n";
}

void on_bus_error(int signal, siginfo_t* info, void* /*context*/) {
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  const char* message = loading.load();
  for (const Slot& slot : slots) {
    if (address >= slot.begin.load() && address < slot.end.load()) message = slot.message.load();
  }
  if (message != nullptr) {
    const ssize_t ignored = write(STDERR_FILENO, message, std::strlen(message));
    static_cast<void>(ignored);
    _exit(1);
  }
  struct sigaction by_default {};
  by_default.sa_handler = SIG_DFL;
  sigaction(signal, &by_default, nullptr);  // what faulted faults again, and ends the process
}

void install_handler() {
  static const bool once = [] {
    struct sigaction action {};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO;
    sigemptyset(&action.sa_mask);
    return sigaction(SIGBUS, &action, nullptr) == 0;
  }();
  static_cast<void>(once);
}

}  // namespace

WatchedFile::WatchedFile(const void* begin, std::size_t size_bytes, const std::string& path) {
  install_handler();
  const std::string message = message_for(path);
  for (std::size_t i = 0; i < num_slots; ++i) {
    Slot& slot = slots.at(i);
    if (slot.taken.exchange(true)) continue;
    slot_ = static_cast<int>(i);
    slot.message = strdup(message.c_str());
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const auto address = reinterpret_cast<std::uintptr_t>(begin);
    slot.begin = address;
    slot.end = address + (size_bytes + page - 1) / page * page;
    return;
  }
}

WatchedFile::~WatchedFile() {
  if (slot_ < 0) return;
  Slot& slot = slots.at(static_cast<std::size_t>(slot_));
  slot.end = 0;
  slot.begin = 0;
  free(const_cast<char*>(slot.message.exchange(nullptr)));  // NOLINT: strdup's
  slot.taken = false;
}

LoadedFileScope::LoadedFileScope(const std::string& path) : message_(message_for(path)) {
  install_handler();
  loading = message_.c_str();
}

LoadedFileScope::~LoadedFileScope() { loading = nullptr; }

void watch_loaded_object(void* object, const std::string& path) {
  static auto* const kept = new std::deque<WatchedFile>;  // NOLINT: to the end of the process
  struct link_map* map = nullptr;
  if (dlinfo(object, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr) return;
  struct Search {
    std::uintptr_t address;
    const std::string& path;
  } search{map->l_addr, path};
  dl_iterate_phdr(
      [](struct dl_phdr_info* info, std::size_t /*size*/, void* data) {
        const auto& wanted = *static_cast<const Search*>(data);
        if (info->dlpi_addr != wanted.address) return 0;
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const auto& part = info->dlpi_phdr[i];
          if (part.p_type != PT_LOAD) continue;
          const auto* begin = reinterpret_cast<const void*>(wanted.address + part.p_vaddr);
          kept->emplace_back(begin, part.p_memsz, wanted.path);
        }
        return 1;
      },
      &search);
}

}  // namespace sluice
