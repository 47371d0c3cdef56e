#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/memory.h"
#include "codelets/runtime/gpu.h"
#include "codelets/runtime/runtime.h"
#include "perfmodels/calibration.h"

namespace sluice {

/// What the link between DDR and the memory of the runtime's accelerator does. It needs host memory
/// of its own, pinned where the accelerator is a GPU. Throws Error when StarPU refuses.
class LinkProbe {
 public:
  enum class Way : std::uint8_t { there, back };

  /// The accelerator has `room_bytes` left.
  LinkProbe(const Runtime& runtime, std::uint64_t room_bytes);
  /// The host memory that it takes.
  static std::uint64_t host_bytes(std::uint64_t room_bytes);

  /// How long data of 4 KiB to 64 MiB, or half of the room, takes either way: medians of what
  /// StarPU needs to bring it there while nothing else moves. No task may run.
  std::vector<CalibrationLink> measure() const;

 private:
  friend class LinkLoad;
  std::byte* host_of(Way way) const;

  const Runtime& runtime_;
  std::uint64_t room_bytes_;
  Buffer host_;
  PinnedMemory pinned_;
};

/// Keeps one way of the link busy for as long as it lives, from a thread of its own; one load a way
/// at a time.
class LinkLoad {
 public:
  using Way = LinkProbe::Way;

  /// In pieces of an eighth of the room that the accelerator's memory has, so many at once.
  LinkLoad(const LinkProbe& probe, Way way, std::size_t at_once = 1);
  ~LinkLoad();
  LinkLoad(const LinkLoad&) = delete;
  LinkLoad& operator=(const LinkLoad&) = delete;

  /// Forgets what it moved so far.
  void restart();
  /// Ends it, once something has arrived. Bytes a second.
  double stop();

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace sluice
