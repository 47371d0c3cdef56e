#include "engine/console/progress.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace sluice {

using Clock = std::chrono::steady_clock;

ProgressBar::ProgressBar(std::string label)
    : label_(std::move(label)), enabled_(isatty(STDERR_FILENO) == 1), start_(Clock::now()) {}

void ProgressBar::update(double done, double total, const std::string& note) {
  using namespace std::chrono_literals;
  const Clock::time_point now = Clock::now();
  if (!enabled_ || now - start_ < 500ms || now - last_draw_ < 100ms) return;
  last_draw_ = now;
  drawn_ = true;
  constexpr int width = 30;
  const double share = total > 0 ? std::clamp(done / total, 0.0, 1.0) : 0.0;
  const int filled = static_cast<int>(share * width);
  fmt::print(stderr, "\r\033[K{} [{}{}] {:3.0f}% {}", label_,
             std::string(static_cast<std::size_t>(filled), '#'),
             std::string(static_cast<std::size_t>(width - filled), '.'), 100 * share, note);
  std::fflush(stderr);
}

void ProgressBar::clear() {
  if (drawn_) fmt::print(stderr, "\r\033[K");
  drawn_ = false;
}

}  // namespace sluice
