#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "engine/batching/engine.h"
#include "engine/requests/detokenizer.h"
#include "engine/requests/inbox.h"
#include "engine/serve/backend.h"

namespace sluice {

/// The engine as the server sees it: requests go in through an inbox, and what the engine says goes
/// to each request's listener. run() is called on the engine's thread, all else on any.
class EngineBackend : public Backend {
 public:
  struct Limits {
    std::int64_t max_outputs = 0;    ///< that wait and run together
    std::int64_t max_kv_tokens = 0;  ///< of one output and its prompt
  };

  /// What the snapshot shows of the run; all outlive run().
  struct Shown {
    std::string policy;
    std::vector<std::string> tiers;  ///< of each pool
    std::span<const KvPool> pools;
    std::string accelerator;               ///< its name; empty: there is none
    std::function<double(Device)> busy_s;  ///< seconds in which a device has computed so far
    std::function<std::vector<EngineSnapshot::Moved>()> moved;  ///< so far; empty: nothing moves
    std::int64_t page_bytes = 0;                                ///< of all layers
  };

  /// `tokenizer` may be null. Until run() begins, requests are refused as `loading`.
  EngineBackend(const Tokenizer* tokenizer, const ModelConfig& model)
      : tokenizer_(tokenizer), model_(model) {}

  Refusal submit(Request request, std::shared_ptr<Listener> listener) override;
  void cancel(std::int64_t index) override { inbox_.cancel(index); }
  void drain() override;
  EngineSnapshot snapshot() const override;

  /// From now on requests are taken, unless it drains.
  void open(const Limits& limits, const Shown& shown);
  /// Serves requests until finish() was called and all are done, or `interrupt` is set; behind
  /// open(). Throws Error when a kernel fails; those that run are then told nothing.
  void run(Engine& engine, const std::atomic<bool>& interrupt);
  /// Nothing comes any more.
  void finish() { inbox_.close(); }

 private:
  struct Known {
    std::shared_ptr<Listener> listener;
    std::int64_t outputs_left = 0;
    bool begun = false;  ///< some output was admitted
  };
  EngineEvents events(const EngineEvents& detokenizing);
  std::shared_ptr<Listener> listener_of(std::int64_t index) const;
  void note_admitted(std::int64_t index);
  void note_iteration(const IterationReport& report);
  void note_finished(Completion completion);
  const std::string& name_of(Device device) const;
  /// The devices' time since the last call goes to the iteration before.
  void share_busy_time(double now_s);
  void look_at_moved(double now_s);
  void count_used_pages();

  const Tokenizer* tokenizer_;
  const ModelConfig& model_;
  RequestInbox inbox_;
  Limits limits_;
  Shown shown_;
  const Engine* engine_ = nullptr;
  std::string text_;  ///< of the token, or the end, that is being told

  mutable std::mutex mutex_;  ///< guards what follows
  std::map<std::int64_t, Known> known_;
  std::int64_t num_outputs_ = 0;
  std::int64_t num_running_ = 0;
  EngineSnapshot snapshot_;
  double last_iteration_s_ = 0;
  double moved_at_s_ = 0;
};

}  // namespace sluice
