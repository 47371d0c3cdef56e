#include "base/topology.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <hwloc.h>
#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

#include "base/error.h"

namespace sluice {
namespace {

struct HwlocDeleter {
  void operator()(hwloc_topology* topology) const noexcept { hwloc_topology_destroy(topology); }
};
using HwlocPtr = std::unique_ptr<hwloc_topology, HwlocDeleter>;

HwlocPtr new_hwloc() {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) throw Error("hwloc cannot start: the machine cannot be read");
  return HwlocPtr(raw);
}

/// The processors that the process was started on (taskset, numactl); its threads choose among them
/// later. Nothing where the system does not say.
const std::optional<cpu_set_t> affinity_at_start = []() -> std::optional<cpu_set_t> {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return std::nullopt;
  return set;
}();

bool was_allowed_at_start(int processor) {
  return !affinity_at_start ||
         (processor < CPU_SETSIZE &&
          CPU_ISSET(static_cast<std::size_t>(processor), &*affinity_at_start));
}

std::optional<TopologyLevel> level_of(hwloc_obj_type_t type) {
  switch (type) {
    case HWLOC_OBJ_MACHINE:
      return TopologyLevel::machine;
    case HWLOC_OBJ_PACKAGE:
      return TopologyLevel::package;
    case HWLOC_OBJ_DIE:
    case HWLOC_OBJ_GROUP:
      return TopologyLevel::group;
    case HWLOC_OBJ_L3CACHE:
      return TopologyLevel::l3;
    case HWLOC_OBJ_L2CACHE:
      return TopologyLevel::l2;
    case HWLOC_OBJ_CORE:
      return TopologyLevel::core;
    case HWLOC_OBJ_PU:
      return TopologyLevel::processor;
    default:
      return std::nullopt;  // caches above the third level, or a core's own
  }
}

bool is_cache(TopologyLevel level) {
  return level == TopologyLevel::l3 || level == TopologyLevel::l2;
}

std::string plural(int count, std::string_view what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

}  // namespace

/// Makes a tree of what hwloc has read.
class TopologyReader {
 public:
  TopologyReader(HwlocPtr hwloc, bool is_this_machine)
      : hwloc_(std::move(hwloc)), allowed_(hwloc_topology_get_allowed_cpuset(hwloc_.get())) {
    topology_.is_this_machine_ = is_this_machine;
    std::vector<TopologyNode> roots = nodes_of(hwloc_get_root_obj(hwloc_.get()));
    topology_.root_ = std::move(roots.front());
    add_memories();
  }

  Topology take() { return std::move(topology_); }

 private:
  bool is_allowed(int processor) const {
    if (!topology_.is_this_machine_) return true;
    return hwloc_bitmap_isset(allowed_, static_cast<unsigned>(processor)) != 0 &&
           was_allowed_at_start(processor);
  }

  /// An object and what is below it: itself as a node, or what it consists of. Where memory hangs
  /// on an object, its NUMA node stands between the object and its parts.
  std::vector<TopologyNode> nodes_of(hwloc_obj_t object) const {
    std::vector<TopologyNode> below;
    for (hwloc_obj_t child = object->first_child; child != nullptr; child = child->next_sibling) {
      std::vector<TopologyNode> nodes = nodes_of(child);
      std::move(nodes.begin(), nodes.end(), std::back_inserter(below));
    }
    if (const hwloc_obj* memory = memory_of(object); memory != nullptr && !below.empty()) {
      TopologyNode numa{.level = TopologyLevel::numa_node,
                        .os_index = static_cast<int>(memory->os_index),
                        .bytes = memory->attr->numanode.local_memory,
                        .allowed = any_allowed(below)};
      numa.children = std::exchange(below, {});
      below.push_back(std::move(numa));
    }
    const std::optional<TopologyLevel> level = level_of(object->type);
    // hwloc makes groups to hang memory on.
    const bool is_memory_group = level == TopologyLevel::group && memory_of(object) != nullptr;
    if (!level || is_memory_group) return below;
    TopologyNode node{.level = *level, .children = std::move(below)};
    if (is_cache(*level)) node.bytes = object->attr->cache.size;
    if (*level == TopologyLevel::processor) {
      node.os_index = static_cast<int>(object->os_index);
      node.allowed = is_allowed(node.os_index);
    } else {
      node.allowed = any_allowed(node.children);
    }
    std::vector<TopologyNode> one;
    one.push_back(std::move(node));
    return one;
  }

  static bool any_allowed(const std::vector<TopologyNode>& nodes) {
    return std::any_of(nodes.begin(), nodes.end(), [](const auto& node) { return node.allowed; });
  }

  /// The first memory that hangs on an object; below caches of memory, if there are any.
  static const hwloc_obj* memory_of(hwloc_obj_t object) {
    for (hwloc_obj_t child = object->memory_first_child; child != nullptr;
         child = child->next_sibling) {
      if (child->type == HWLOC_OBJ_NUMANODE) return child;
      if (const hwloc_obj* below = memory_of(child); below != nullptr) return below;
    }
    return nullptr;
  }

  void add_memories() {
    const hwloc_const_bitmap_t nodes = hwloc_topology_get_allowed_nodeset(hwloc_.get());
    hwloc_obj_t node = nullptr;
    while ((node = hwloc_get_next_obj_by_type(hwloc_.get(), HWLOC_OBJ_NUMANODE, node)) != nullptr) {
      TopologyMemory memory{.os_index = static_cast<int>(node->os_index),
                            .bytes = node->attr->numanode.local_memory,
                            .allowed = hwloc_bitmap_isset(nodes, node->os_index) != 0};
      for (int processor = hwloc_bitmap_first(node->cpuset); processor >= 0;
           processor = hwloc_bitmap_next(node->cpuset, processor)) {
        memory.near_processors.push_back(processor);
      }
      topology_.memories_.push_back(std::move(memory));
    }
    // hwloc has a node without processors behind the one that it is near to.
    std::sort(topology_.memories_.begin(), topology_.memories_.end(),
              [](const auto& a, const auto& b) { return a.os_index < b.os_index; });
  }

  HwlocPtr hwloc_;
  hwloc_const_bitmap_t allowed_;
  Topology topology_;
};

std::string_view to_string(TopologyLevel level) {
  switch (level) {
    case TopologyLevel::machine:
      return "machine";
    case TopologyLevel::package:
      return "package";
    case TopologyLevel::group:
      return "group";
    case TopologyLevel::numa_node:
      return "NUMA node";
    case TopologyLevel::l3:
      return "L3 cache";
    case TopologyLevel::l2:
      return "L2 cache";
    case TopologyLevel::core:
      return "core";
    case TopologyLevel::processor:
      return "hardware thread";
  }
  return "";
}

void TopologyNode::for_each(TopologyLevel of,
                            const std::function<void(const TopologyNode&)>& visit) const {
  if (level == of) visit(*this);
  for (const TopologyNode& child : children) child.for_each(of, visit);
}

namespace {

/// The processors of a synthetic text: the product of its levels' counts, which stand behind a
/// colon or alone. What is in brackets describes a level.
double processors_of(const std::string& text) {
  double product = 1;
  int depth = 0;
  bool begins_word = true;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char letter = text[i];
    if (letter == '(' || letter == '[') ++depth;
    if (letter == ')' || letter == ']') --depth;
    const bool is_digit = letter >= '0' && letter <= '9';
    if (depth == 0 && is_digit && begins_word) product *= std::strtod(text.c_str() + i, nullptr);
    begins_word = letter == ':' || letter == ' ';
  }
  return product;
}

/// Nothing where hwloc does not take the text.
std::optional<Topology> synthetic(const std::string& text) {
  constexpr double most_processors = 4096;
  if (processors_of(text) > most_processors)
    throw Error("topology \"{}\": more than {:.0f} hardware threads, expected no more", text,
                most_processors);
  HwlocPtr hwloc = new_hwloc();
  if (hwloc_topology_set_synthetic(hwloc.get(), text.c_str()) != 0 ||
      hwloc_topology_load(hwloc.get()) != 0) {
    return std::nullopt;
  }
  return TopologyReader(std::move(hwloc), false).take();
}

}  // namespace

Topology Topology::of_this_machine() {
  HwlocPtr hwloc = new_hwloc();
  hwloc_topology_set_flags(hwloc.get(), HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
  if (hwloc_topology_load(hwloc.get()) != 0)
    throw Error("hwloc cannot read the machine's topology");
  return TopologyReader(std::move(hwloc), true).take();
}

Topology Topology::described_by(const std::string& file_or_text) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(file_or_text, ignored)) {
    std::optional<Topology> described = synthetic(file_or_text);
    if (described) return *std::move(described);
    throw Error(
        "topology \"{}\": {}, and hwloc does not read it as a synthetic text; give something like "
        "\"pack:2 numa:1 l3:4 core:8 pu:2\"",
        file_or_text,
        std::filesystem::exists(file_or_text, ignored) ? "not a file" : "no such file");
  }
  HwlocPtr hwloc = new_hwloc();
  if (hwloc_topology_set_xml(hwloc.get(), file_or_text.c_str()) != 0 ||
      hwloc_topology_load(hwloc.get()) != 0) {
    throw Error("{}: hwloc cannot read it as a topology; write one with lstopo --of xml",
                file_or_text);
  }
  return TopologyReader(std::move(hwloc), false).take();
}

Topology Topology::of_synthetic_text(const std::string& text) {
  std::optional<Topology> described = synthetic(text);
  if (described) return *std::move(described);
  throw Error(
      "hwloc does not read \"{}\" as a synthetic text; give something like \"pack:2 numa:1 l3:4 "
      "core:8 pu:2\"",
      text);
}

int Topology::count(TopologyLevel level) const {
  int count = 0;
  root_.for_each(level, [&](const TopologyNode& /*node*/) { ++count; });
  return count;
}

std::vector<int> Topology::cores() const {
  std::vector<int> result;
  // Some virtual machines show no cores.
  const bool has_cores = count(TopologyLevel::core) > 0;
  root_.for_each(has_cores ? TopologyLevel::core : TopologyLevel::processor,
                 [&](const TopologyNode& core) {
                   std::optional<int> first;
                   core.for_each(TopologyLevel::processor, [&](const TopologyNode& processor) {
                     if (processor.allowed && !first) first = processor.os_index;
                   });
                   if (first) result.push_back(*first);
                 });
  return result;
}

std::vector<std::vector<int>> Topology::threads_of_cores() const {
  std::vector<std::vector<int>> result;
  const bool has_cores = count(TopologyLevel::core) > 0;
  root_.for_each(has_cores ? TopologyLevel::core : TopologyLevel::processor,
                 [&](const TopologyNode& core) {
                   std::vector<int>& threads = result.emplace_back();
                   core.for_each(TopologyLevel::processor, [&](const TopologyNode& processor) {
                     threads.push_back(processor.os_index);
                   });
                 });
  return result;
}

int Topology::numa_node_of(int processor) const {
  int result = -1;
  root_.for_each(TopologyLevel::numa_node, [&](const TopologyNode& node) {
    node.for_each(TopologyLevel::processor, [&](const TopologyNode& below) {
      if (below.os_index == processor) result = node.os_index;
    });
  });
  return result;
}

std::string Topology::summary() const {
  std::vector<std::string> parts;
  int before = 1;
  for (const TopologyLevel level :
       {TopologyLevel::package, TopologyLevel::group, TopologyLevel::numa_node, TopologyLevel::l3,
        TopologyLevel::l2, TopologyLevel::core, TopologyLevel::processor}) {
    const int nodes = count(level);
    const bool always = level == TopologyLevel::package || level == TopologyLevel::core;
    if (nodes > before || (always && nodes > 0) ||
        (parts.empty() && level == TopologyLevel::processor))
      parts.push_back(plural(nodes, to_string(level)));
    before = std::max(before, nodes);
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

namespace {

std::string shape_of(const TopologyNode& node) {
  if (node.level == TopologyLevel::processor) return std::to_string(node.os_index);
  std::vector<std::string> below;
  for (const TopologyNode& child : node.children) below.push_back(shape_of(child));
  std::string size;
  if (is_cache(node.level)) size = fmt::format(" {}", node.bytes);
  return fmt::format("{}{}({})", to_string(node.level), size, fmt::join(below, " "));
}

}  // namespace

std::string Topology::shape() const { return shape_of(root_); }

}  // namespace sluice
