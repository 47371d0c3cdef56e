#include "base/numa.h"

#include <fmt/format.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>

#include "base/error.h"
#include "base/log.h"

namespace sluice {
namespace {

constexpr std::size_t mask_bits = 1024;
using Mask = std::array<unsigned long, mask_bits / (8 * sizeof(unsigned long))>;

std::string listed(const std::vector<int>& nodes) {
  std::string text;
  for (const int node : nodes) {
    if (!text.empty()) text += ',';
    text += std::to_string(node);
  }
  return text;
}

std::filesystem::path node_folder(const std::filesystem::path& root, int node) {
  return root / "sys/devices/system/node" / fmt::format("node{}", node);
}

std::size_t page_bytes() { return static_cast<std::size_t>(sysconf(_SC_PAGESIZE)); }

Mask mask_of(const std::vector<int>& nodes) {
  Mask mask{};
  constexpr std::size_t word_bits = 8 * sizeof(unsigned long);
  for (const int node : nodes) {
    const auto bit = static_cast<std::size_t>(node);
    if (bit >= mask_bits) throw Error("NUMA node {} is none", node);
    mask.at(bit / word_bits) |= 1UL << (bit % word_bits);
  }
  return mask;
}

/// The pages of [data, data + size), which begins at one, come from these nodes in turn.
void bind(std::byte* data, std::size_t size, const std::vector<int>& nodes, TouchedPages touched) {
  const Mask mask = mask_of(nodes);
  const int policy = nodes.size() > 1 ? MPOL_INTERLEAVE : MPOL_BIND;
  const unsigned flags = touched == TouchedPages::move ? MPOL_MF_MOVE : 0;
  if (syscall(SYS_mbind, data, size, policy, mask.data(), mask_bits, flags) != 0) {
    throw Error("memory cannot be bound to NUMA node {}: {}", listed(nodes), std::strerror(errno));
  }
}

/// The high watermarks of a node's zones.
std::uint64_t kept_back_bytes(int node, const std::filesystem::path& root) {
  std::ifstream file(root / "proc/zoneinfo");
  const std::string ours = fmt::format("{},", node);
  std::uint64_t num_pages = 0;
  bool is_ours = false;
  std::string word;
  while (file >> word) {
    std::uint64_t high = 0;
    if (word == "Node" && file >> word) is_ours = word == ours;
    if (word == "high" && file >> high && is_ours) num_pages += high;
  }
  return num_pages * page_bytes();
}

}  // namespace

void interleave(const Buffer& buffer, const std::vector<int>& nodes, TouchedPages touched) {
  if (buffer.size() == 0) return;
  bind(buffer.data(), buffer.size(), nodes, touched);
  // A huge page lies on one node whole: of few of them the shares would be unequal.
  constexpr std::size_t fewest_each = 2;
  if (nodes.size() > 1 && buffer.size() < nodes.size() * fewest_each * huge_page_bytes)
    madvise(buffer.data(), buffer.size(), MADV_NOHUGEPAGE);
}

std::vector<std::uint64_t> first_pages(std::uint64_t num_pages,
                                       const std::vector<NodeShare>& parts) {
  std::vector<std::uint64_t> borders = {0};
  double sum = 0;
  for (const NodeShare& part : parts) {
    sum += part.share;
    borders.push_back(std::min(
        num_pages, static_cast<std::uint64_t>(std::llround(sum * static_cast<double>(num_pages)))));
  }
  borders.back() = num_pages;
  return borders;
}

void bind_parts(const Buffer& buffer, const std::vector<NodeShare>& parts, TouchedPages touched) {
  const std::vector<std::uint64_t> borders = first_pages(num_pages(buffer), parts);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::size_t begin = borders[i] * page_bytes();
    const std::size_t end = std::min(buffer.size(), borders[i + 1] * page_bytes());
    if (begin < end) bind(buffer.data() + begin, end - begin, {parts[i].node}, touched);
  }
}

void interleave_if_allowed(const Buffer& buffer, const std::vector<int>& nodes) {
  if (nodes.empty()) return;
  try {
    interleave(buffer, nodes);
  } catch (const Error& error) {
    logger().info("{}; it lies where it is first touched", error.what());
  }
}

PreferredNode::PreferredNode(int node) {
  const Mask mask = mask_of({node});
  if (syscall(SYS_set_mempolicy, MPOL_PREFERRED, mask.data(), mask_bits) != 0)
    throw Error("a thread cannot take memory of NUMA node {}: {}", node, std::strerror(errno));
}

PreferredNode::~PreferredNode() { syscall(SYS_set_mempolicy, MPOL_DEFAULT, nullptr, 0); }

void use_small_pages(const Buffer& buffer) {
  if (buffer.size() > 0) madvise(buffer.data(), buffer.size(), MADV_NOHUGEPAGE);
}

void touch_new_pages(const Buffer& buffer, std::uint64_t begin, std::uint64_t end) {
  const std::uint64_t page = page_bytes();
  for (std::uint64_t at = (begin + page - 1) / page * page; at < end; at += page)
    *static_cast<volatile std::byte*>(buffer.data() + at) = std::byte{0};
}

std::uint64_t num_pages(const Buffer& buffer) {
  return (buffer.size() + page_bytes() - 1) / page_bytes();
}

std::map<int, std::uint64_t> pages_by_node(const Buffer& buffer, std::uint64_t every) {
  return pages_by_node(buffer, every, 0, num_pages(buffer));
}

std::map<int, std::uint64_t> pages_by_node(const Buffer& buffer, std::uint64_t every,
                                           std::uint64_t first, std::uint64_t end) {
  const std::size_t all = (end - first + every - 1) / every;
  constexpr std::size_t at_once = 4096;
  std::array<void*, at_once> pages{};
  std::array<int, at_once> found{};
  std::map<int, std::uint64_t> count;
  for (std::size_t done = 0; done < all; done += at_once) {
    const std::size_t some = std::min(at_once, all - done);
    for (std::size_t i = 0; i < some; ++i)
      pages.at(i) = buffer.data() + (first + (done + i) * every) * page_bytes();
    if (syscall(SYS_move_pages, 0, some, pages.data(), nullptr, found.data(), 0) != 0)
      throw Error("the system does not say where memory lies: {}", std::strerror(errno));
    for (std::size_t i = 0; i < some; ++i) {
      if (found.at(i) >= 0) ++count[found.at(i)];
    }
  }
  return count;
}

bool has_processors(int node, const std::filesystem::path& root) {
  std::ifstream file(node_folder(root, node) / "cpulist");
  if (!file) return true;
  int first = 0;
  return static_cast<bool>(file >> first);
}

std::uint64_t free_node_bytes(int node, const std::filesystem::path& root) {
  std::ifstream file(node_folder(root, node) / "meminfo");
  std::uint64_t bytes = 0;
  std::string word;
  while (file >> word) {
    std::uint64_t kilobytes = 0;
    if ((word == "MemFree:" || word == "FilePages:") && file >> kilobytes)
      bytes += kilobytes * 1024;
    if (word == "Shmem:" && file >> kilobytes) bytes -= std::min(bytes, kilobytes * 1024);
  }
  return bytes - std::min(bytes, kept_back_bytes(node, root));
}

}  // namespace sluice
