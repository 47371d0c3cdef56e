#include "engine/run/moved_bytes.h"

#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "base/units.h"

namespace sluice {
namespace {

std::string arrow(const TierMove& move) {
  return fmt::format("{} -> {}", to_string(move.from), to_string(move.to));
}

}  // namespace

std::string format_rate(double bytes_per_s) {
  constexpr double giga = 1e9;
  constexpr double mega = 1e6;
  constexpr double kilo = 1e3;
  if (bytes_per_s >= giga) return fmt::format("{:.2f} GB/s", bytes_per_s / giga);
  if (bytes_per_s >= mega) return fmt::format("{:.1f} MB/s", bytes_per_s / mega);
  return fmt::format("{:.1f} kB/s", bytes_per_s / kilo);
}

MovedBytes::Counts MovedBytes::now() const {
  Counts counts;
  if (runtime_.accelerator_node()) {
    const AcceleratorUse use = runtime_.accelerator_use();
    Count& to = counts[{Tier::ddr, Tier::hbm}];
    Count& from = counts[{Tier::hbm, Tier::ddr}];
    to.bytes = use.to_bytes - use.cxl_bytes;
    from.bytes = use.from_bytes;
    counts[{Tier::cxl, Tier::hbm}].bytes = use.cxl_bytes;
    if (accelerator_.kind == Accelerator::Kind::cuda) {
      to.copy_bytes_per_s = accelerator_.copies.to_gpu_bytes_per_s;
      from.copy_bytes_per_s = accelerator_.copies.from_gpu_bytes_per_s;
    }
  }
  if (disk_ != nullptr) {
    const DiskUse use = disk_->use();
    counts[{Tier::disk, Tier::ddr}] = {.bytes = model_.read_bytes() + use.read_bytes,
                                       .busy_s = use.read_s};
    counts[{Tier::ddr, Tier::disk}].bytes = disk_->loading_bytes() + use.written_bytes;
  }
  return counts;
}

void MovedBytes::run_ends(double wall_s, bool has_cxl) {
  wall_s_ = wall_s;
  if (has_cxl) cxl_read_bytes_ = runtime_.cxl_read_bytes() - cxl_read_before_;
  moves_ = moves_until(now());
}

std::vector<TierMove> MovedBytes::so_far() const { return moves_until(now()); }

std::vector<TierMove> MovedBytes::moves_until(const Counts& now) const {
  static const Count nothing;
  std::vector<TierMove> moves;
  for (const auto& [pair, after] : now) {
    const auto found = before_.find(pair);
    const Count& before = found == before_.end() ? nothing : found->second;
    if (after.bytes == 0) continue;
    TierMove& move = moves.emplace_back();
    move.from = pair.first;
    move.to = pair.second;
    move.load_bytes = before.bytes;
    move.bytes = after.bytes - before.bytes;
    move.copy_bytes_per_s = after.copy_bytes_per_s;
    if (after.busy_s) move.busy_s = *after.busy_s - before.busy_s.value_or(0);
  }
  return moves;
}

double MovedBytes::per_s(std::uint64_t bytes) const {
  return wall_s_ > 0 ? static_cast<double>(bytes) / wall_s_ : 0;
}

std::string MovedBytes::summary() const {
  std::vector<std::string> during;
  std::vector<std::string> before;
  for (const TierMove& move : moves_) {
    if (move.load_bytes > 0)
      before.push_back(fmt::format("{} {}", arrow(move), format_bytes(move.load_bytes)));
    if (move.bytes == 0) continue;
    during.push_back(fmt::format("{} {} at {}", arrow(move), format_bytes(move.bytes),
                                 format_rate(per_s(move.bytes))));
    if (move.busy_s.value_or(0) > 0) {
      during.back() += fmt::format(" ({} while moving)",
                                   format_rate(static_cast<double>(move.bytes) / *move.busy_s));
    }
    if (move.copy_bytes_per_s)
      during.back() += fmt::format(" (a plain copy: {})", format_rate(*move.copy_bytes_per_s));
  }
  if (during.empty()) during.emplace_back("nothing between tiers");
  std::string text =
      fmt::format("moved while generating ({:.2f} s): {}", wall_s_, fmt::join(during, ", "));
  if (!before.empty()) text += fmt::format("; before that: {}", fmt::join(before, ", "));
  if (cxl_read_bytes_.value_or(0) > 0) {
    text += fmt::format("; read in place in cxl: {} at {}", format_bytes(*cxl_read_bytes_),
                        format_rate(per_s(*cxl_read_bytes_)));
  }
  return text;
}

void MovedBytes::add_to(nlohmann::json& stats) const {
  nlohmann::json& moved = stats["moved"];
  moved = nlohmann::json::array();
  for (const TierMove& move : moves_) {
    nlohmann::json entry = {{"from", to_string(move.from)},
                            {"to", to_string(move.to)},
                            {"load_bytes", move.load_bytes},
                            {"bytes", move.bytes},
                            {"bytes_per_s", per_s(move.bytes)}};
    if (move.busy_s) entry["busy_s"] = *move.busy_s;
    if (move.copy_bytes_per_s) entry["copy_bytes_per_s"] = *move.copy_bytes_per_s;
    moved.push_back(std::move(entry));
  }
  if (!cxl_read_bytes_) return;
  stats["cxl"]["read_bytes"] = *cxl_read_bytes_;
  stats["cxl"]["read_bytes_per_s"] = per_s(*cxl_read_bytes_);
}

}  // namespace sluice
