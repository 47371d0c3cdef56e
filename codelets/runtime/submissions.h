#pragma once

#include <cstdint>

namespace sluice {

/// Tasks that this process has submitted so far.
std::int64_t num_submissions();

}  // namespace sluice
