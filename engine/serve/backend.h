#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/requests/request.h"

namespace sluice {

/// Why an engine does not take a request, or gives it back.
enum class Refusal : std::uint8_t { none, queue_full, too_long, loading, draining };

/// One token of one output, in order.
struct OutputToken {
  std::int64_t output = 0;  ///< from 0, below the request's num_outputs
  std::int32_t token = 0;
  std::string text;        ///< what became certain with it: whole characters, or nothing yet
  TokenLogprobs logprobs;  ///< filled where the request asks for them
};

/// What becomes of one request. Called on the engine's thread, so nothing here may block or throw.
/// The last call is on_refused(), on_error(), or on_finished() of the last output.
class Listener {
 public:
  virtual ~Listener() = default;

  /// Before the first token, where prompt_logprobs are asked for: of each prompt token but the
  /// first.
  virtual void on_prompt_logprobs(std::vector<TokenLogprobs> positions) = 0;
  /// Tokens that end an output (end of sequence, stop tokens) are not among them.
  virtual void on_token(OutputToken token) = 0;
  /// `text` is what was still held back, for instance as the beginning of a stop text.
  virtual void on_finished(std::int64_t output, FinishReason reason, std::string text) = 0;
  /// Taken by submit(), and given back before anything was computed: the engine drains.
  virtual void on_refused(Refusal refusal) = 0;
  virtual void on_error(std::string message) = 0;
};

/// What an engine does at one moment, and what it has done since it started.
struct EngineSnapshot {
  enum class State : std::uint8_t { loading, ready, draining, failed };

  /// KV pages of one tier.
  struct Pool {
    std::string tier;  ///< "hbm", "ddr"
    std::int64_t pages = 0;
    std::int64_t used_pages = 0;
    std::int64_t page_tokens = 0;
  };
  struct Device {
    std::string name;  ///< "cpu", "cuda", "standin"
    double busy_s = 0;
  };
  /// Bytes of all kinds (weights, KV, values) that went from one tier to another.
  struct Moved {
    std::string from;
    std::string to;
    std::int64_t bytes = 0;
  };
  /// One piece of an iteration on one device.
  struct Work {
    std::string device;
    std::string what;  ///< "prefill", "decode", "attention"
    int sub_batch = 0;
    std::int64_t sequences = 0;
    std::int64_t tokens = 0;
    double busy_s = 0;
  };
  struct Iteration {
    std::int64_t number = 0;
    double duration_s = 0;
    int sub_batches = 1;
    std::vector<Work> work;
  };

  State state = State::loading;
  std::string policy;
  std::int64_t running = 0;
  std::int64_t waiting = 0;
  std::int64_t swapped =
      0;  ///< of the running ones, those whose KV is not in the first of two pools
  std::vector<Pool> pools;
  std::vector<Device> devices;
  std::vector<Moved> moved;
  std::int64_t prompt_tokens = 0;  ///< computed
  std::int64_t output_tokens = 0;
  std::int64_t moved_in_bytes = 0;   ///< of KV, to the accelerator
  std::int64_t moved_out_bytes = 0;  ///< of KV, from it
  std::int64_t preemptions_by_swap = 0;
  std::int64_t preemptions_by_recompute = 0;
  std::int64_t prefix_hit_tokens = 0;
  std::int64_t iterations_of_one = 0;  ///< with one sub-batch
  std::int64_t iterations_of_two = 0;
  std::vector<Iteration> recent;  ///< the last ones, oldest first
};

/// What the server asks of an engine. Its calls come from one thread and return at once.
class Backend {
 public:
  virtual ~Backend() = default;

  /// Queues a request, whose `index` no other one has. Unless it is refused, the listener hears of
  /// it from now on, perhaps before this returns.
  virtual Refusal submit(Request request, std::shared_ptr<Listener> listener) = 0;
  /// Ends a request; its listener may still hear what was on its way. One that has ended, or that
  /// was never known, is no mistake.
  virtual void cancel(std::int64_t index) = 0;
  /// From now on requests are refused; those of which nothing is computed are given back.
  virtual void drain() = 0;
  virtual EngineSnapshot snapshot() const = 0;
};

}  // namespace sluice
