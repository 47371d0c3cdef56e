#pragma once

#include <cstdint>
#include <string>

#include "engine/machine/accelerator.h"

namespace sluice {

class CommandLine;

/// --device, --hbm and --cuda-graphs.
void declare_device_options(CommandLine& line);
/// What they say; find_accelerator() looks for it. Throws UsageError.
DeviceSettings read_device(const CommandLine& line);
/// Bytes of the stand-in accelerator that `text`, "standin:MEMORY", describes, whole MiB. Throws
/// UsageError.
std::uint64_t read_stand_in_bytes(const std::string& text);

}  // namespace sluice
