#include "perfmodels/running_costs.h"

#include <fmt/ranges.h>

#include <vector>

#include "base/error.h"

namespace sluice {
namespace {

constexpr double seconds_per_hour = 3600;
constexpr double seconds_per_year = 365 * 24 * seconds_per_hour;

/// Reads a profile's optional fields, and notes which are missing.
class Fields {
 public:
  explicit Fields(std::string machine) : machine_(std::move(machine)) {}
  double get(const char* path, const std::optional<Sourced<double>>& field) {
    if (field) return field->value;
    missing_.emplace_back(path);
    return 0;
  }
  const std::vector<std::string>& missing() const { return missing_; }
  [[noreturn]] void complain(const char* path, double found, const std::string& expected) const {
    throw Error("profile {}: {} is {}: expected at least {}", machine_, path, found, expected);
  }

 private:
  std::string machine_;
  std::vector<std::string> missing_;
};

struct DeviceWatts {
  double idle = 0;
  double busy = 0;
};

DeviceWatts watts_of(Fields& fields, const char* idle_path, const char* busy_path,
                     const DeviceProfile& device, double count) {
  const DeviceWatts watts = {count * fields.get(idle_path, device.idle_watts),
                             count * fields.get(busy_path, device.busy_watts)};
  if (device.idle_watts && device.busy_watts && watts.busy < watts.idle) {
    fields.complain(busy_path, device.busy_watts->value,
                    fmt::format("{}, {}", idle_path, device.idle_watts->value));
  }
  return watts;
}

/// Of what is neither CPU nor GPU.
double other_watts(Fields& fields, const SystemProfile& system, double device_idle_watts) {
  if (system.other_watts || !system.idle_watts)
    return fields.get("system.other_watts", system.other_watts);
  const double other = system.idle_watts->value - device_idle_watts;
  if (other < 0) {
    fields.complain("system.idle_watts", system.idle_watts->value,
                    fmt::format("what CPU and GPU draw idle, {}", device_idle_watts));
  }
  return other;
}

}  // namespace

RunningCosts::RunningCosts(const MachineProfile& profile) {
  Fields fields(profile.name);
  const DeviceWatts cpu = watts_of(fields, "cpu.idle_watts", "cpu.busy_watts", profile.cpu, 1);
  DeviceWatts gpu;
  if (profile.gpu) {
    gpu = watts_of(fields, "gpu.idle_watts", "gpu.busy_watts", *profile.gpu, profile.gpu_count());
  }
  const double idle_watts = cpu.idle + gpu.idle;
  const double other = other_watts(fields, profile.system, idle_watts);
  if (fields.missing().empty())
    power_ = {other + idle_watts, cpu.busy - cpu.idle, gpu.busy - gpu.idle};

  const double price_usd = fields.get("system.price_usd", profile.system.price_usd);
  const double years = fields.get("system.lifetime_years", profile.system.lifetime_years);
  const double usd_per_kwh =
      fields.get("system.electricity_usd_per_kwh", profile.system.electricity_usd_per_kwh);
  if (fields.missing().empty()) {
    const double full_kw = 1e-3 * (other + cpu.busy + gpu.busy);
    usd_per_s_ = price_usd / (years * seconds_per_year) + full_kw * usd_per_kwh / seconds_per_hour;
  }
  problem_ = fields.missing().empty()
                 ? ""
                 : fmt::format("the profile lacks {}", fmt::join(fields.missing(), ", "));
}

std::optional<double> RunningCosts::energy_j(double seconds, const BusyTimes& busy) const {
  if (!power_) return std::nullopt;
  return power_->idle_watts * seconds + power_->cpu_watts * busy.cpu_s +
         power_->gpu_watts * busy.gpu_s;
}

std::optional<double> RunningCosts::cost_usd(double seconds) const {
  if (!usd_per_s_) return std::nullopt;
  return *usd_per_s_ * seconds;
}

}  // namespace sluice
