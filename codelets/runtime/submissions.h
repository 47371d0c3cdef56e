#pragma once

#include <cstdint>

namespace sluice {

/// A task is about to be submitted.
void note_submission();
/// Tasks that this process has submitted so far.
std::int64_t num_submissions();

}  // namespace sluice
