#include "codelets/runtime/submissions.h"

#include <atomic>

namespace sluice {
namespace {

std::atomic<std::int64_t> submissions{0};

}  // namespace

void note_submission() { submissions.fetch_add(1, std::memory_order_relaxed); }

std::int64_t num_submissions() { return submissions.load(std::memory_order_relaxed); }

}  // namespace sluice
