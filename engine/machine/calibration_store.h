#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "perfmodels/calibration.h"

namespace sluice {

/// What a calibration on this machine with these threads holds for; `device`: an accelerator's
/// name, empty for the CPU; `cpu_plan`: CpuUse::cut_text().
CalibrationSetup calibration_setup(DType dtype, int threads, std::string device = "",
                                   std::string cpu_plan = "");

/// Stands for a text in a file's name: the same in every version of the program (FNV-1a).
std::uint32_t checksum(const std::string& text);

/// Where calibrations of this machine and kernel_generation are kept: a folder of the user's data
/// folder.
std::filesystem::path calibration_folder(const CalibrationSetup& setup);

/// Where it is kept: in that folder a file a model's layer shape, GEMM type, number of threads,
/// accelerator and CPU plan.
std::filesystem::path calibration_path(const CalibrationSetup& setup, const ModelDimensions& model);

/// What is stored there, finished or not; nothing when there is no file. Throws Error when it
/// cannot be read, and when it is of another machine or model than its name says.
std::optional<Calibration> read_calibration(const CalibrationSetup& setup,
                                            const ModelDimensions& model);

/// Of the finished calibrations of other models with this setup the one whose layers are nearest
/// (layer_distance()) among those that say something of this model's (transferable()): both must
/// read their layers from memory and not from caches. Nothing when there is none. What cannot be
/// read is left out and said in a line on stderr.
std::optional<Calibration> nearest_calibration(const CalibrationSetup& setup,
                                               const ModelDimensions& model);

/// Writes it there as a whole: to a temporary beside it, then renamed. Throws Error.
void write_calibration(const Calibration& calibration);

/// All files of this machine and these kernels, sorted.
std::vector<std::filesystem::path> stored_calibrations(const CalibrationSetup& setup);

}  // namespace sluice
