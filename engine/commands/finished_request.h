#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "engine/requests/events.h"

namespace sluice {

/// A request whose outputs have all ended.
struct FinishedRequest {
  struct Output {
    Completion completion;
    std::vector<TokenLogprobs> logprobs;  ///< of its token_ids, where the request asks for them
  };
  std::vector<Output> outputs;  ///< as many as Request::num_outputs, in order

  const Request& request() const { return *outputs.front().completion.request; }
};

/// Puts together what the engine tells of each output.
class FinishedRequests {
 public:
  void note_token(const Request& request, const DrawnToken& token);
  /// The whole request, with its last output.
  std::optional<FinishedRequest> add(Completion completion);

 private:
  struct Gathered {
    FinishedRequest request;
    std::int64_t num_finished = 0;
  };
  Gathered& gathered(const Request& request);

  std::map<std::int64_t, Gathered> begun_;  ///< by Request::index
};

}  // namespace sluice
