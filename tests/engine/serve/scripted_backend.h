#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "engine/serve/backend.h"
#include "models/tokenizer.h"

namespace sluice::test {

/// Plays an engine on a thread of its own: output token i is the prompt's token i, again and again.
/// Token i has the logprob -(i + 1) / 4, and beside it the ids that follow it, each with 1 less.
class ScriptedBackend final : public Backend {
 public:
  struct Script {
    std::chrono::milliseconds token_delay{0};
    std::size_t most_waiting = 1000;
    std::size_t most_running = 1000;
    std::int64_t stop_after = 1 << 30;  ///< tokens; then the output ends by itself
  };

  ScriptedBackend(const Tokenizer* tokenizer, Script script);
  ~ScriptedBackend() override;

  Refusal submit(Request request, std::shared_ptr<Listener> listener) override;
  void cancel(std::int64_t index) override;
  void drain() override;
  EngineSnapshot snapshot() const override;

  /// Nothing is computed while it is held.
  void hold(bool held);
  /// Every request ends with this error.
  void break_down(const std::string& message);
  void set_state(EngineSnapshot::State state);

  /// The submitted requests, and the cancelled ones that had not ended.
  std::vector<Request> submitted() const;
  std::set<std::int64_t> cancelled() const;
  std::size_t num_unfinished() const;

 private:
  struct Task {
    Request request;
    std::shared_ptr<Listener> listener;
    std::int64_t drawn = 0;     ///< tokens of each output
    std::size_t end = 0;        ///< bytes of the output's text ahead of the first stop text
    std::size_t num_bytes = 0;  ///< of the drawn tokens' text
  };

  void compute();
  /// One token of each output of each running request.
  void step();
  /// True: it has ended.
  bool step(Task& task);
  std::int32_t token_at(const Request& request, std::int64_t place) const;
  /// The output is known ahead, and so is where a stop text ends it.
  std::size_t end_of_text(const Request& request) const;
  OutputToken token_of(const Task& task, std::int64_t output) const;
  TokenLogprobs logprobs_of(std::int32_t token, std::int64_t place, int count) const;

  const Tokenizer* tokenizer_;
  Script script_;
  mutable std::mutex mutex_;
  std::condition_variable condition_;
  std::map<std::int64_t, Task> running_;
  std::deque<Task> waiting_;
  std::vector<Request> submitted_;
  std::set<std::int64_t> cancelled_;
  EngineSnapshot::State state_ = EngineSnapshot::State::ready;
  EngineSnapshot counters_;
  bool held_ = false;
  bool over_ = false;
  std::thread thread_;  ///< the last: it uses the others
};

}  // namespace sluice::test
