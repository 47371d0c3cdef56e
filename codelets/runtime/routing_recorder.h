#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "codelets/runtime/shape.h"
#include "perfmodels/routing.h"

namespace sluice {

/// Which experts rows went through, counted.
class RoutingCounts {
 public:
  /// The rows of one layer in one iteration; `routing` [rows, experts a row].
  void add(std::int64_t layer, const MixtureShape& mixture, std::span<const ExpertChoice> routing);
  RoutingCounts& operator+=(const RoutingCounts& other);

  bool empty() const { return layers_.empty(); }
  /// Rows of the layer that had the most.
  std::int64_t rows() const;
  /// Of all layers and iterations together, each expert once where some row went through it.
  std::int64_t touched() const;
  /// The mean of it, over layers and iterations.
  double mean_touched() const;
  std::vector<TouchedExperts> touched_by_rows() const;
  /// As a routing file of a model with so many layers has it.
  RecordedRouting recorded(std::string model, std::int64_t num_layers) const;

 private:
  struct Touched {
    std::int64_t experts = 0;
    std::int64_t times = 0;  ///< layers and iterations
  };
  std::int64_t per_row_ = 1;
  std::map<std::int64_t, std::vector<std::int64_t>> layers_;  ///< how often each expert was chosen
  std::map<std::int64_t, Touched> by_rows_;                   ///< by rows of an iteration
};

/// Where the CPU's experts tell which rows they compute; any thread.
class RoutingRecorder {
 public:
  void add(std::int64_t layer, const MixtureShape& mixture, std::span<const ExpertChoice> routing) {
    const std::scoped_lock lock(mutex_);
    counts_.add(layer, mixture, routing);
  }
  /// What was counted since the last call.
  RoutingCounts take() {
    const std::scoped_lock lock(mutex_);
    return std::exchange(counts_, {});
  }

 private:
  std::mutex mutex_;
  RoutingCounts counts_;
};

}  // namespace sluice
