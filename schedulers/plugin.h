#pragma once

// All that a policy's source includes. It ends with one line:
//   SLUICE_POLICY(MyPolicy, "my-policy", "what it does, in a few words")

#include <starpu.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "schedulers/look_ahead.h"
#include "schedulers/policy.h"

namespace sluice {

/// What a policy's shared object says about itself: plain data under the symbol `sluice_policy`,
/// which the loader reads before it calls anything. `magic` to `struct_bytes` never move; what
/// follows is only read when `api_version` is the reader's own.
struct PolicyDescriptor {
  static constexpr std::uint32_t expected_magic = 0x51a1cedb;

  std::uint32_t magic = expected_magic;
  std::uint32_t api_version = policy_api_version;
  std::uint32_t struct_bytes = sizeof(PolicyDescriptor);

  // What it was compiled against; the two StarPU flavours are two ABIs under one SONAME.
  std::uint32_t task_tag_magic = TaskTag::expected_magic;
  std::uint32_t task_tag_bytes = sizeof(TaskTag);
  std::uint32_t starpu_max_workers = STARPU_NMAXWORKERS;
  std::uint32_t starpu_max_buffers = STARPU_NMAXBUFS;
  std::uint32_t starpu_major = STARPU_MAJOR_VERSION;
  std::uint32_t starpu_minor = STARPU_MINOR_VERSION;
#ifdef STARPU_SIMGRID
  const char* flavour = "simgrid";
#else
  const char* flavour = "native";
#endif

  const char* name = nullptr;         ///< of --policy
  const char* description = nullptr;  ///< a few words
  Policy* (*create)() = nullptr;      ///< may throw
  void (*destroy)(Policy*) = nullptr;
  starpu_sched_policy* scheduler = nullptr;  ///< for starpu_conf::sched_policy
  /// What may be on its way into a GPU's memory; before starpu_init(). May be null.
  void (*set_staging)(const Staging&) = nullptr;
  /// It runs on the shared scheduler (look_ahead.h), whose order plans count on.
  bool has_shared_scheduler = false;
  /// It shows what others gain. Only taken when it is asked for.
  bool is_baseline = false;
};

}  // namespace sluice

#define SLUICE_PLUGIN_EXPORT __attribute__((visibility("default")))

/// What the macros below make.
#define SLUICE_POLICY_OBJECT(Class, Name, Description, Scheduler, SetStaging, IsShared,     \
                             IsBaseline)                                                    \
  extern "C" {                                                                              \
  extern SLUICE_PLUGIN_EXPORT const sluice::PolicyDescriptor sluice_policy;                 \
  const constinit sluice::PolicyDescriptor sluice_policy = {                                \
      .name = (Name),                                                                       \
      .description = (Description),                                                         \
      .create = []() -> sluice::Policy* { return new Class(); },                            \
      .destroy = [](sluice::Policy* policy) { delete policy; },                             \
      .scheduler = &(Scheduler),                                                            \
      .set_staging = (SetStaging),                                                          \
      .has_shared_scheduler = (IsShared),                                                   \
      .is_baseline = (IsBaseline)};                                                         \
  SLUICE_PLUGIN_EXPORT starpu_sched_policy* starpu_get_sched_lib_policy(const char* name) { \
    return std::strcmp(name, Name) == 0 ? &(Scheduler) : nullptr;                           \
  }                                                                                         \
  SLUICE_PLUGIN_EXPORT starpu_sched_policy** starpu_get_sched_lib_policies() {              \
    static starpu_sched_policy* policies[] = {&(Scheduler), nullptr};                       \
    return policies;                                                                        \
  }                                                                                         \
  }                                                                                         \
  static_assert(true)

/// Makes a shared object of a class derived from sluice::Policy that runs on the scheduler
/// `Scheduler`, a starpu_sched_policy that lives as long as the process. The two functions are what
/// StarPU itself asks for when STARPU_SCHED_LIB names the object. Once an object, at its top level.
/// Plans do not know its order: sluice plan says so.
#define SLUICE_POLICY_ON(Class, Name, Description, Scheduler, SetStaging) \
  SLUICE_POLICY_OBJECT(Class, Name, Description, Scheduler, SetStaging, false, false)

/// The same on the shared scheduler (look_ahead.h): what a policy wants unless it places single
/// tasks itself.
#define SLUICE_POLICY(Class, Name, Description) \
  SLUICE_POLICY_ON_SHARED(Class, Name, Description, false)

/// The same for a policy that shows what others gain: a run takes it only when it is asked for.
#define SLUICE_BASELINE(Class, Name, Description) \
  SLUICE_POLICY_ON_SHARED(Class, Name, Description, true)

#define SLUICE_POLICY_ON_SHARED(Class, Name, Description, IsBaseline)                         \
  static constinit starpu_sched_policy sluice_scheduler =                                     \
      sluice::look_ahead_scheduler(Name, Description);                                        \
  SLUICE_POLICY_OBJECT(Class, Name, Description, sluice_scheduler, sluice::set_staging, true, \
                       IsBaseline)
