#include "engine/serve/api_error.h"

#include <nlohmann/json.hpp>

#include "base/json.h"

namespace sluice {
namespace {

using nlohmann::ordered_json;

ordered_json or_null(const std::string& text) {
  return text.empty() ? ordered_json(nullptr) : ordered_json(text);
}

std::string type_of(const ApiError::Details& details) {
  constexpr int too_many_requests = 429;
  constexpr int server_fault = 500;
  constexpr int unavailable = 503;
  if (!details.type.empty()) return details.type;
  if (details.status == too_many_requests) return "rate_limit_error";
  if (details.status == unavailable) return "service_unavailable_error";
  return details.status >= server_fault ? "server_error" : "invalid_request_error";
}

}  // namespace

std::string ApiError::body() const {
  const ordered_json error = {{"message", what()},
                              {"type", type_of(details_)},
                              {"param", or_null(details_.param)},
                              {"code", or_null(details_.code)}};
  return json_text(ordered_json{{"error", error}});
}

}  // namespace sluice
