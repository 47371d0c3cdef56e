#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/draw/ratio_plot.h"
#include "perfmodels/footprint.h"

namespace sluice {

/// What a run of one policy came to.
struct RunFigures {
  double tokens_per_s = 0;
  double ttft_s = 0;
  double tpot_s = 0;
  std::optional<double> joules_per_token;
};

/// A run that is compared. Files are shown without their folders.
struct ComparedRun {
  std::string model;
  std::string machine;
  std::string policy;                 ///< a name or a file
  Workload workload;                  ///< as it was asked for: of as_many_as_fit, too
  std::optional<RunFigures> figures;  ///< nothing: it could not be
};

/// How many times better each policy is than `baseline`, which is one of the runs' policies: a row
/// for each of the figures (energy where it is known), a column for each model and machine, a group
/// for each workload. More is better throughout: more tokens/s, less time, less energy. Where the
/// baseline could not be there is nothing to compare with: the figures stand for themselves.
RatioGrid compare_policies(const std::vector<ComparedRun>& runs, const std::string& baseline);

}  // namespace sluice
