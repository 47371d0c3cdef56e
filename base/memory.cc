#include "base/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>

#include "base/cgroup.h"
#include "base/error.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace sluice {
namespace {

constexpr std::uint64_t unlimited = std::numeric_limits<std::uint64_t>::max();

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

std::optional<std::uint64_t> number_in(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::uint64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;  // absent, or "max"
}

/// The value after "name " in a control group's memory.stat, in bytes.
std::uint64_t stat_field(const std::filesystem::path& file, const std::string& name) {
  std::ifstream stat(file);
  std::string word;
  std::uint64_t value = 0;
  while (stat >> word >> value) {
    if (word == name) return value;
  }
  return 0;
}

/// How a version of control groups names what it says of memory.
struct CgroupFiles {
  const char* limit;
  const char* used;
  const char* given_up_first;  ///< a field of memory.stat: files that nobody has read lately
};
constexpr CgroupFiles version_1 = {"memory.limit_in_bytes", "memory.usage_in_bytes",
                                   "total_inactive_file"};
constexpr CgroupFiles version_2 = {"memory.max", "memory.current", "inactive_file"};

/// What the limit of one group leaves.
std::uint64_t left_in_cgroup(const std::filesystem::path& folder, const CgroupFiles& files) {
  const auto limit = number_in(folder / files.limit);
  const auto used = number_in(folder / files.used);
  if (!limit || !used) return unlimited;
  const std::uint64_t given_up = stat_field(folder / "memory.stat", files.given_up_first);
  const std::uint64_t kept = *used - std::min(*used, given_up);
  return *limit > kept ? *limit - kept : 0;
}

/// Null when the address space cannot be had.
std::byte* map(std::size_t size_bytes) {
  void* mapped = mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return mapped == MAP_FAILED ? nullptr : static_cast<std::byte*>(mapped);
}

/// From the start of a huge page on: else what comes before the first whole one lies in small
/// pages, scattered otherwise in each process. Where NUMA nodes take huge pages in turn the kernel
/// goes by their addresses: each mapping goes on with the turn of the one before, so that many that
/// are small and alike do not all begin with the same node.
std::byte* map_huge(std::size_t size_bytes) {
  constexpr std::size_t turn_bytes = 12 * huge_page_bytes;  // of 2, 3 or 4 nodes
  static std::atomic<std::size_t> next_page = 0;
  const std::size_t page = next_page.fetch_add(size_bytes / huge_page_bytes);
  const std::size_t mapped_bytes =
      size_bytes + std::min(turn_bytes, std::numeric_limits<std::size_t>::max() - size_bytes);
  std::byte* const mapped = map(mapped_bytes);
  if (mapped == nullptr) return nullptr;
  const auto address = reinterpret_cast<std::uintptr_t>(mapped);
  const std::size_t wanted = page * huge_page_bytes % turn_bytes;
  const std::size_t before = (turn_bytes + wanted - address % turn_bytes) % turn_bytes;
  const auto page_bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::size_t end = before + (size_bytes + page_bytes - 1) / page_bytes * page_bytes;
  if (before > 0) munmap(mapped, before);
  if (end < mapped_bytes) munmap(mapped + end, mapped_bytes - end);
  madvise(mapped + before, size_bytes, MADV_HUGEPAGE);
  return mapped + before;
}

// AddressSanitizer knows nothing of mapped memory: what lies behind a buffer is forbidden to it.
#if defined(__SANITIZE_ADDRESS__)
constexpr std::size_t guard_bytes = 4096;
void guard(std::byte* end) { __asan_poison_memory_region(end, guard_bytes); }
void unguard(std::byte* end) { __asan_unpoison_memory_region(end, guard_bytes); }
#else
constexpr std::size_t guard_bytes = 0;
void guard(std::byte* /*end*/) {}
void unguard(std::byte* /*end*/) {}
#endif

}  // namespace

Buffer::Buffer(std::size_t size_bytes) {
  if (size_bytes == 0) return;
  const std::size_t mapped =
      size_bytes + std::min(guard_bytes, std::numeric_limits<std::size_t>::max() - size_bytes);
  data_ = size_bytes >= huge_page_bytes ? map_huge(mapped) : map(mapped);
  if (data_ == nullptr) {
    throw Error("cannot reserve {} bytes of memory: {}; use a smaller model, batch or context",
                size_bytes, std::strerror(errno));
  }
  size_ = size_bytes;
  guard(data_ + size_);
}

void Buffer::commit() const noexcept {
  if (data_ != nullptr) madvise(data_, size_, MADV_POPULATE_WRITE);
}

void Buffer::release() noexcept {
  if (data_ != nullptr) {
    unguard(data_ + size_);
    munmap(data_, size_ + guard_bytes);
  }
  data_ = nullptr;
  size_ = 0;
}

std::uint64_t cgroup_available_bytes(const std::filesystem::path& root) {
  std::uint64_t left = unlimited;
  for_each_cgroup(
      root, "memory", [&left](const std::filesystem::path& folder, CgroupVersion version) {
        const CgroupFiles& files = version == CgroupVersion::one ? version_1 : version_2;
        left = std::min(left, left_in_cgroup(folder, files));
      });
  return left;
}

std::uint64_t available_memory_bytes() {
  return std::min(proc_field("/proc/meminfo", "MemAvailable").value_or(unlimited),
                  cgroup_available_bytes());
}

std::uint64_t total_memory_bytes() {
  return proc_field("/proc/meminfo", "MemTotal").value_or(unlimited);
}

std::optional<std::uint64_t> huge_page_bytes_of(const Buffer& buffer) {
  std::ifstream maps("/proc/self/smaps");
  if (!maps) return std::nullopt;
  const auto begin = reinterpret_cast<std::uintptr_t>(buffer.data());
  const std::uintptr_t end = begin + buffer.size();
  std::uint64_t bytes = 0;
  bool is_ours = false;
  std::string line;
  while (std::getline(maps, line)) {  // "BEGIN-END rw-p ...", then lines "Name:  NUMBER kB"
    std::istringstream words(line);
    std::uintptr_t first = 0;
    std::uintptr_t last = 0;
    char dash = 0;
    std::string name;
    if (words >> std::hex >> first >> dash >> last && dash == '-') {
      is_ours = first < end && last > begin;
      continue;
    }
    words.clear();
    words.seekg(0);
    std::uint64_t kilobytes = 0;
    if (is_ours && words >> name && name == "AnonHugePages:" && words >> std::dec >> kilobytes)
      bytes += kilobytes * 1024;
  }
  return std::min<std::uint64_t>(bytes, buffer.size());
}

std::uint64_t peak_resident_bytes() { return proc_field("/proc/self/status", "VmHWM").value_or(0); }

std::uint64_t anonymous_resident_bytes() {
  return proc_field("/proc/self/status", "RssAnon").value_or(0);
}

}  // namespace sluice
