#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "schedulers/checked_policy.h"
#include "schedulers/look_ahead.h"

struct starpu_sched_policy;

namespace sluice {

struct PolicyDescriptor;

/// How the names of policies' shared objects end, by StarPU's flavour.
inline constexpr std::string_view native_policy_ending = ".so";
inline constexpr std::string_view simgrid_policy_ending = ".simgrid.so";

/// Where policies are looked for by name, in order: SLUICE_POLICY_PATH (folders, separated by
/// colons), then where they lie beside the program, installed or just built.
std::vector<std::filesystem::path> policy_folders();

/// Names of the policies in these folders that fit this program's StarPU flavour, sorted.
std::vector<std::string> find_policies(const std::vector<std::filesystem::path>& folders);

/// A policy from its shared object. Outlives StarPU, which uses its scheduler.
///
/// Opening the object runs its static constructors. Nothing else of it runs before its descriptor
/// (plugin.h) was found to fit this program.
class LoadedPolicy {
 public:
  /// `name_or_file`: a file if it has a slash or ends in ".so", else a policy of `folders`. Throws
  /// Error: no such policy (the nearest names first), no shared object, not a policy, or one for
  /// another API version, StarPU version or flavour; UsageError for an option that it lacks.
  LoadedPolicy(const std::string& name_or_file, const std::map<std::string, std::string>& options,
               const std::vector<std::filesystem::path>& folders = policy_folders());

  CheckedPolicy& policy() { return *policy_; }
  const std::string& name() const { return policy_->name(); }
  std::string description() const;
  /// What StarPU starts with.
  starpu_sched_policy* scheduler() const;

  /// Whether tasks run in an order that plans do not know.
  bool has_own_scheduler() const;

  /// Whether it is there to be compared with, and taken only when it is asked for.
  bool is_baseline() const;

  /// What may be on its way into a GPU's memory; before StarPU starts.
  void set_staging(const Staging& staging);

 private:
  LoadedPolicy(const std::map<std::string, std::string>& options,
               const std::filesystem::path& file);

  const PolicyDescriptor* descriptor_;
  std::unique_ptr<Policy, void (*)(Policy*)> instance_;
  std::unique_ptr<CheckedPolicy> policy_;
};

}  // namespace sluice
