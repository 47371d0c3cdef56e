#pragma once

#include <string>
#include <string_view>

#include "engine/serve/backend.h"

namespace sluice {

/// What the page polls: the engine's state, queues, pools, devices and last iterations, as JSON.
std::string live_json(const EngineSnapshot& engine, std::string_view model);

const char* to_string(EngineSnapshot::State state);

/// The page at "/": HTML and JavaScript that ask for nothing outside of this server.
std::string_view chat_page();

}  // namespace sluice
