#include "base/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

#include "base/error.h"

namespace sluice {
namespace {

constexpr std::size_t huge_page_bytes = std::size_t{2} << 20;

/// The value after "Name:" in a /proc file, in bytes.
std::optional<std::uint64_t> proc_field(const char* path, const std::string& name) {
  std::ifstream file(path);
  std::string word;
  while (file >> word) {
    if (word == name + ":") {
      std::uint64_t kilobytes = 0;
      if (file >> kilobytes) return kilobytes * 1024;
    }
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return std::nullopt;
}

std::optional<std::uint64_t> number_in(const std::string& path) {
  std::ifstream file(path);
  std::uint64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;  // absent, or "max"
}

/// The folder of this process's version 2 control group, if there is one.
std::optional<std::string> cgroup_folder() {
  std::ifstream file("/proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    if (line.starts_with("0::")) return "/sys/fs/cgroup" + line.substr(3);
  }
  return std::nullopt;
}

}  // namespace

Buffer::Buffer(std::size_t size_bytes) {
  if (size_bytes == 0) return;
  void* mapped = mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) {
    throw Error("cannot reserve {} bytes of memory: {}; use a smaller model, batch or context",
                size_bytes, std::strerror(errno));
  }
  if (size_bytes >= huge_page_bytes) madvise(mapped, size_bytes, MADV_HUGEPAGE);
  data_ = static_cast<std::byte*>(mapped);
  size_ = size_bytes;
}

void Buffer::release() noexcept {
  if (data_ != nullptr) munmap(data_, size_);
  data_ = nullptr;
  size_ = 0;
}

std::uint64_t available_memory_bytes() {
  std::uint64_t available = proc_field("/proc/meminfo", "MemAvailable")
                                .value_or(std::numeric_limits<std::uint64_t>::max());
  if (const auto folder = cgroup_folder()) {
    const auto limit = number_in(*folder + "/memory.max");
    const auto used = number_in(*folder + "/memory.current");
    if (limit && used) available = std::min(available, *limit > *used ? *limit - *used : 0);
  }
  return available;
}

std::uint64_t total_memory_bytes() {
  return proc_field("/proc/meminfo", "MemTotal")
      .value_or(std::numeric_limits<std::uint64_t>::max());
}

std::uint64_t peak_resident_bytes() { return proc_field("/proc/self/status", "VmHWM").value_or(0); }

std::uint64_t anonymous_resident_bytes() {
  return proc_field("/proc/self/status", "RssAnon").value_or(0);
}

}  // namespace sluice
