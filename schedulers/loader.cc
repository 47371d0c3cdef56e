#include "schedulers/loader.h"

#include <dlfcn.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <string_view>

#include "base/environment.h"
#include "base/error.h"
#include "base/nearest_word.h"
#include "base/watched_files.h"
#include "schedulers/crash_guard.h"
#include "schedulers/plugin.h"
#include "schedulers/shared_object.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

/// What this program is, as an object of its own would describe it.
constexpr PolicyDescriptor ours;

bool simulates() { return std::string_view(ours.flavour) == "simgrid"; }

void add_folders(std::vector<fs::path>& folders, const std::string& list, const fs::path& base) {
  for (std::size_t begin = 0; begin < list.size();) {
    const std::size_t end = std::min(list.find(':', begin), list.size());
    if (end > begin) folders.push_back(base / list.substr(begin, end - begin));
    begin = end + 1;
  }
}

/// Nothing for a file that is no policy of this program's flavour.
std::string policy_name(const fs::path& file) {
  const std::string name = file.filename();
  const bool for_simgrid = name.ends_with(simgrid_policy_ending);
  if (!name.ends_with(native_policy_ending) || for_simgrid != simulates()) return "";
  return name.substr(
      0, name.size() - (for_simgrid ? simgrid_policy_ending : native_policy_ending).size());
}

std::vector<std::string> folder_names(const std::vector<fs::path>& folders) {
  std::vector<std::string> names;
  names.reserve(folders.size());
  for (const fs::path& folder : folders) names.push_back(folder.string());
  return names;
}

fs::path find_file(const std::string& name, const std::vector<fs::path>& folders) {
  if (name.find('/') != std::string::npos || name.ends_with(native_policy_ending)) {
    std::error_code ignored;
    if (!fs::exists(name, ignored)) throw Error("--policy {}: no such file", name);
    return fs::absolute(name);
  }
  for (const fs::path& folder : folders) {
    fs::path file =
        folder /
        fmt::format("{}{}", name, simulates() ? simgrid_policy_ending : native_policy_ending);
    std::error_code ignored;
    if (fs::exists(file, ignored)) return file;
  }
  const std::vector<std::string> known = nearest_first(name, find_policies(folders));
  if (known.empty()) {
    throw Error(
        "--policy {}: there are no policies in {}; set SLUICE_POLICY_PATH to their folder, or give "
        "a file",
        name, fmt::join(folder_names(folders), ", "));
  }
  throw Error("--policy {}: no such policy; there are {}; a policy of your own is given as a file",
              name, fmt::join(known, ", "));
}

/// What dlerror() says, without the file's name.
std::string loading_error(const fs::path& file) {
  const char* text = dlerror();  // NOLINT(concurrency-mt-unsafe): before StarPU's threads
  std::string message = text != nullptr ? text : "unknown error";
  const std::string prefix = file.string() + ": ";
  if (message.starts_with(prefix)) message.erase(0, prefix.size());
  return message;
}

constexpr const char* advice = "build it with sluice_add_policy() of this Sluice";

/// Maps the object into the process, for good: StarPU may call into it until the end. `when` is
/// RTLD_NOW, or RTLD_LAZY to leave functions unresolved. Null: loading_error() says why.
void* open_object(const fs::path& file, int when) {
  const LoadedFileScope loading(file.string());
  void* object = dlopen(file.c_str(), when | RTLD_LOCAL | RTLD_NODELETE);
  if (object != nullptr) watch_loaded_object(object, file.string());
  return object;
}

void check_fits(const PolicyDescriptor& its, const std::string& file) {
  const auto same = [&](const char* what, auto built_with, auto has) {
    if (built_with != has) {
      throw Error("--policy {}: built with {} {}, this Sluice has {}; {}", file, what, built_with,
                  has, advice);
    }
  };
  if (its.magic != ours.magic) {
    throw Error("--policy {}: its symbol sluice_policy is no policy's descriptor; {}", file,
                advice);
  }
  same("policy API version", its.api_version, ours.api_version);
  same("descriptor bytes", its.struct_bytes, ours.struct_bytes);
  if (std::string_view(its.flavour) != ours.flavour) {
    throw Error("--policy {}: built for the {} StarPU, this program has the {} one; take {}", file,
                its.flavour, ours.flavour,
                simulates() ? "its .simgrid.so" : "its .so without .simgrid");
  }
  same("StarPU", fmt::format("{}.{}", its.starpu_major, its.starpu_minor),
       fmt::format("{}.{}", ours.starpu_major, ours.starpu_minor));
  same("STARPU_NMAXWORKERS", its.starpu_max_workers, ours.starpu_max_workers);
  same("STARPU_NMAXBUFS", its.starpu_max_buffers, ours.starpu_max_buffers);
  same("task tag", its.task_tag_magic, ours.task_tag_magic);
  same("task tag bytes", its.task_tag_bytes, ours.task_tag_bytes);
  if (its.name == nullptr || its.description == nullptr || its.create == nullptr ||
      its.destroy == nullptr || its.scheduler == nullptr) {
    throw Error("--policy {}: its descriptor lacks a name, a function or the scheduler; {}", file,
                "define it with SLUICE_POLICY()");
  }
  // To their ends: of a damaged file they may lie anywhere, and here a crash has a line.
  if (std::strlen(its.name) == 0 || std::strlen(its.description) == 0)
    throw Error("--policy {}: its name or description is empty; {}", file,
                "define it with SLUICE_POLICY()");
  if (its.scheduler->push_task == nullptr)
    throw Error("--policy {}: its scheduler has no push_task, without which no task ever runs",
                file);
}

std::string crash_line(const fs::path& file) {
  return fmt::format(
      "--policy {}: the dynamic linker crashed while loading it: the file is damaged; {}",
      file.string(), advice);
}

const PolicyDescriptor* read_descriptor(const fs::path& file) {
  if (const std::string problem = shared_object_problem(file); !problem.empty())
    throw Error("--policy {}: cannot be loaded: {}; {}", file.string(), problem, advice);
  const std::string if_it_crashes = crash_line(file);
  const CrashGuard guard({if_it_crashes});
  void* handle = open_object(file, RTLD_NOW);
  const bool complete = handle != nullptr;
  std::string error;
  if (!complete) {
    // Built for something else, it may lack functions here; its descriptor says that better.
    error = loading_error(file);
    handle = open_object(file, RTLD_LAZY);
  }
  const void* symbol = handle != nullptr ? dlsym(handle, "sluice_policy") : nullptr;
  if (complete && symbol == nullptr) {
    throw Error("--policy {}: it has no symbol sluice_policy; end its source with SLUICE_POLICY()",
                file.string());
  }
  const auto* descriptor = static_cast<const PolicyDescriptor*>(symbol);
  if (descriptor != nullptr) check_fits(*descriptor, file.string());
  if (!complete)
    throw Error("--policy {}: cannot be loaded ({}); {}", file.string(), error, advice);
  return descriptor;
}

/// Beside the program, installed or just built.
std::vector<fs::path> shipped_folders() {
  std::vector<fs::path> folders;
  std::error_code failed;
  const fs::path program = fs::read_symlink("/proc/self/exe", failed);
  if (!failed) add_folders(folders, SLUICE_POLICY_FOLDERS, program.parent_path());
  for (fs::path& folder : folders) folder = folder.lexically_normal();
  return folders;
}

PolicyOrigin origin_of(const fs::path& file) {
  const std::vector<fs::path> shipped = shipped_folders();
  const bool is_shipped =
      std::find(shipped.begin(), shipped.end(), file.parent_path()) != shipped.end();
  return is_shipped ? PolicyOrigin::shipped : PolicyOrigin::own;
}

std::unique_ptr<Policy, void (*)(Policy*)> make_policy(const PolicyDescriptor& descriptor) {
  const CrashGuard guard({"policy ", descriptor.name,
                          ": its constructor crashed: its file is damaged, or its code fails"});
  try {
    return {descriptor.create(), descriptor.destroy};
  } catch (...) {
    throw Error("policy {}: its constructor: {}", descriptor.name, thrown_text());
  }
}

}  // namespace

std::vector<fs::path> policy_folders() {
  std::vector<fs::path> folders;
  add_folders(folders, environment().policy_path, "");
  for (fs::path& folder : folders) folder = folder.lexically_normal();
  std::ranges::copy(shipped_folders(), std::back_inserter(folders));
  return folders;
}

std::vector<std::string> find_policies(const std::vector<fs::path>& folders) {
  std::vector<std::string> names;
  for (const fs::path& folder : folders) {
    std::error_code ignored;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
      std::string name = policy_name(entry.path());
      if (!name.empty() && entry.is_regular_file(ignored)) names.push_back(std::move(name));
    }
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

LoadedPolicy::LoadedPolicy(const std::string& name_or_file,
                           const std::map<std::string, std::string>& options,
                           const std::vector<fs::path>& folders)
    : LoadedPolicy(options, find_file(name_or_file, folders)) {}

LoadedPolicy::LoadedPolicy(const std::map<std::string, std::string>& options, const fs::path& file)
    : descriptor_(read_descriptor(file)), instance_(make_policy(*descriptor_)) {
  if (!instance_) throw Error("policy {}: it made no policy", descriptor_->name);
  policy_ = std::make_unique<CheckedPolicy>(*instance_, descriptor_->name, origin_of(file));
  policy_->configure(options);
}

std::string LoadedPolicy::description() const { return descriptor_->description; }

starpu_sched_policy* LoadedPolicy::scheduler() const { return descriptor_->scheduler; }

bool LoadedPolicy::is_baseline() const { return descriptor_->is_baseline; }

bool LoadedPolicy::has_own_scheduler() const { return !descriptor_->has_shared_scheduler; }

void LoadedPolicy::set_staging(const Staging& staging) {
  if (descriptor_->set_staging != nullptr) descriptor_->set_staging(staging);
}

}  // namespace sluice
