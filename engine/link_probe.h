#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "codelets/runtime/runtime.h"
#include "perfmodels/calibration.h"

namespace sluice {

/// How long data of 4 KiB to 64 MiB takes between DDR and the memory of the runtime's accelerator,
/// either way: medians of what StarPU needs to bring it there while nothing else moves. The
/// accelerator has `room_bytes` left: the largest piece is half of that. Host memory is pinned
/// where the accelerator is a GPU. No task may run. Throws Error when StarPU refuses.
std::vector<CalibrationLink> measure_links(const Runtime& runtime, std::uint64_t room_bytes);

/// Keeps the way to the accelerator's memory, or the one back, busy for as long as it lives, from a
/// thread of its own.
class LinkLoad {
 public:
  enum class Way : std::uint8_t { there, back };

  /// In pieces of an eighth of the room that the accelerator's memory has, so many at once.
  LinkLoad(const Runtime& runtime, std::uint64_t room_bytes, Way way, std::size_t at_once = 1);
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
