#include "engine/commands/finished_request.h"

#include <utility>

namespace sluice {

FinishedRequests::Gathered& FinishedRequests::gathered(const Request& request) {
  Gathered& found = begun_[request.index];
  found.request.outputs.resize(static_cast<std::size_t>(request.num_outputs));
  return found;
}

void FinishedRequests::note_token(const Request& request, const DrawnToken& token) {
  if (!request.logprobs || token.logprobs == nullptr || token.ends) return;
  gathered(request)
      .request.outputs.at(static_cast<std::size_t>(token.output))
      .logprobs.push_back(*token.logprobs);
}

std::optional<FinishedRequest> FinishedRequests::add(Completion completion) {
  const Request& request = *completion.request;
  Gathered& found = gathered(request);
  const auto output = static_cast<std::size_t>(completion.output);
  const std::int64_t index = request.index;
  const bool is_last = ++found.num_finished == request.num_outputs;
  found.request.outputs.at(output).completion = std::move(completion);
  if (!is_last) return std::nullopt;
  FinishedRequest finished = std::move(found.request);
  begun_.erase(index);
  return finished;
}

}  // namespace sluice
