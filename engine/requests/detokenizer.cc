#include "engine/requests/detokenizer.h"

namespace sluice {

EngineEvents Detokenizer::events() {
  return {.on_token = [this](const Request& request,
                             const DrawnToken& token) { return take(request, token); },
          .on_finished = [this](Completion completion) { finish(std::move(completion)); }};
}

Verdict Detokenizer::take(const Request& request, const DrawnToken& token) {
  if (tokenizer_ == nullptr || token.ends) return Verdict::goes_on;
  TextOutput& output =
      texts_.try_emplace({request.index, token.output}, *tokenizer_, request.stop).first->second;
  const std::string text = output.add(token.id);
  if (!text.empty() && on_text_) on_text_(request, token.output, text);
  return output.stopped() ? Verdict::ends : Verdict::goes_on;
}

void Detokenizer::finish(Completion completion) {
  if (const auto found = texts_.find({completion.request->index, completion.output});
      found != texts_.end()) {
    const std::string rest = found->second.finish();
    if (!rest.empty() && on_text_) on_text_(*completion.request, completion.output, rest);
    completion.text = found->second.text();
    texts_.erase(found);
  }
  if (on_finished_) on_finished_(std::move(completion));
}

}  // namespace sluice
