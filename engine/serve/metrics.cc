#include "engine/serve/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <utility>
#include <vector>

namespace sluice {
namespace {

using prometheus::ClientMetric;
using prometheus::Counter;
using prometheus::Family;
using prometheus::Histogram;
using prometheus::MetricFamily;
using prometheus::MetricType;

const Histogram::BucketBoundaries& first_token_bounds() {
  static const Histogram::BucketBoundaries bounds{0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1,
                                                  2.5,   5,    10,    25,   50,  100,  250};
  return bounds;
}

const Histogram::BucketBoundaries& per_token_bounds() {
  static const Histogram::BucketBoundaries bounds{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
                                                  0.1,   0.25,   0.5,   1,    2.5,   5};
  return bounds;
}

const Histogram::BucketBoundaries& latency_bounds() {
  static const Histogram::BucketBoundaries bounds{0.05, 0.1, 0.25, 0.5, 1,   2.5, 5,
                                                  10,   25,  50,   100, 250, 500, 1000};
  return bounds;
}

/// One metric of the engine's: its label's value, and its number.
using Sample = std::pair<std::string, double>;

MetricFamily moved_bytes(const EngineSnapshot& engine) {
  MetricFamily made{.name = "sluice_moved_bytes_total",
                    .help = "Bytes of all kinds moved from one tier to another",
                    .type = MetricType::Counter,
                    .metric = {}};
  for (const EngineSnapshot::Moved& moved : engine.moved) {
    ClientMetric metric;
    metric.label = {{"from", moved.from}, {"to", moved.to}};
    metric.counter.value = static_cast<double>(moved.bytes);
    made.metric.push_back(std::move(metric));
  }
  return made;
}

/// A family with one label, or none where `label` is empty.
MetricFamily family(MetricType type, std::string name, std::string help, const std::string& label,
                    const std::vector<Sample>& samples) {
  MetricFamily made{.name = std::move(name), .help = std::move(help), .type = type, .metric = {}};
  for (const auto& [value, number] : samples) {
    ClientMetric metric;
    if (!label.empty()) metric.label.push_back({label, value});
    metric.gauge.value = number;
    metric.counter.value = number;
    made.metric.push_back(std::move(metric));
  }
  return made;
}

MetricFamily gauge(std::string name, std::string help, std::int64_t value) {
  return family(MetricType::Gauge, std::move(name), std::move(help), "",
                {{"", static_cast<double>(value)}});
}

MetricFamily counter(std::string name, std::string help, std::int64_t value) {
  return family(MetricType::Counter, std::move(name), std::move(help), "",
                {{"", static_cast<double>(value)}});
}

MetricFamily counters(std::string name, std::string help, const std::string& label,
                      const std::vector<std::pair<std::string, std::int64_t>>& values) {
  std::vector<Sample> samples;
  samples.reserve(values.size());
  for (const auto& [value, number] : values)
    samples.emplace_back(value, static_cast<double>(number));
  return family(MetricType::Counter, std::move(name), std::move(help), label, samples);
}

std::vector<MetricFamily> families_of(const EngineSnapshot& engine) {
  std::vector<Sample> pages;
  std::vector<Sample> used;
  for (const EngineSnapshot::Pool& pool : engine.pools) {
    pages.emplace_back(pool.tier, static_cast<double>(pool.pages));
    used.emplace_back(pool.tier, static_cast<double>(pool.used_pages));
  }
  std::vector<Sample> busy;
  busy.reserve(engine.devices.size());
  for (const EngineSnapshot::Device& device : engine.devices)
    busy.emplace_back(device.name, device.busy_s);
  return {
      gauge("sluice_requests_running", "Requests that take part in iterations", engine.running),
      gauge("sluice_requests_waiting", "Requests of which nothing is computed", engine.waiting),
      gauge("sluice_requests_swapped", "Running requests whose KV is not in the first of two pools",
            engine.swapped),
      family(MetricType::Gauge, "sluice_kv_pages", "Pages of the KV pool", "tier", pages),
      family(MetricType::Gauge, "sluice_kv_pages_used", "Pages of the KV pool in use", "tier",
             used),
      counter("sluice_computed_prompt_tokens_total", "Prompt tokens computed",
              engine.prompt_tokens),
      counter("sluice_computed_output_tokens_total", "Output tokens drawn", engine.output_tokens),
      counters("sluice_kv_moved_bytes_total", "KV bytes moved between tiers", "direction",
               {{"in", engine.moved_in_bytes}, {"out", engine.moved_out_bytes}}),
      moved_bytes(engine),
      counters(
          "sluice_preemptions_total", "Requests stopped to make room", "by",
          {{"swap", engine.preemptions_by_swap}, {"recompute", engine.preemptions_by_recompute}}),
      counter("sluice_prefix_hit_tokens_total", "Prompt tokens found in the prefix cache",
              engine.prefix_hit_tokens),
      counters("sluice_iterations_total", "Iterations by their number of sub-batches",
               "sub_batches", {{"1", engine.iterations_of_one}, {"2", engine.iterations_of_two}}),
      family(MetricType::Counter, "sluice_busy_seconds_total", "Time in which a device computed",
             "device", busy)};
}

double seconds(RequestTimes::Clock::duration time) {
  return std::chrono::duration<double>(time).count();
}

}  // namespace

struct ServeMetrics::Families {
  prometheus::Registry registry;
  Family<Counter>& answers = prometheus::BuildCounter()
                                 .Name("sluice_http_answers_total")
                                 .Help("Answers by HTTP status")
                                 .Register(registry);
  Family<Counter>& outputs = prometheus::BuildCounter()
                                 .Name("sluice_outputs_total")
                                 .Help("Outputs of requests by what ended them")
                                 .Register(registry);
  Family<Counter>& tokens = prometheus::BuildCounter()
                                .Name("sluice_tokens_total")
                                .Help("Tokens of requests")
                                .Register(registry);
  Counter& prompt_tokens = tokens.Add({{"kind", "prompt"}});
  Counter& output_tokens = tokens.Add({{"kind", "output"}});
  Histogram& first_token = prometheus::BuildHistogram()
                               .Name("sluice_time_to_first_token_seconds")
                               .Help("From a request's arrival to its first token")
                               .Register(registry)
                               .Add({}, first_token_bounds());
  Histogram& per_token = prometheus::BuildHistogram()
                             .Name("sluice_time_per_output_token_seconds")
                             .Help("Mean time between an output's tokens")
                             .Register(registry)
                             .Add({}, per_token_bounds());
  Histogram& latency = prometheus::BuildHistogram()
                           .Name("sluice_request_latency_seconds")
                           .Help("From a request's arrival to an output's last token")
                           .Register(registry)
                           .Add({}, latency_bounds());
};

ServeMetrics::ServeMetrics() : families_(std::make_unique<Families>()) {
  for (const char* reason : {"stop", "length", "cancelled", "error", "refused"})
    families_->outputs.Add({{"finish_reason", reason}});
}

ServeMetrics::~ServeMetrics() = default;

void ServeMetrics::count_answer(int status) {
  families_->answers.Add({{"status", std::to_string(status)}}).Increment();
}

void ServeMetrics::count_output(const std::string& finish_reason) {
  families_->outputs.Add({{"finish_reason", finish_reason}}).Increment();
}

void ServeMetrics::count_prompt_tokens(std::int64_t tokens) {
  families_->prompt_tokens.Increment(static_cast<double>(tokens));
}

void ServeMetrics::count_output_token() { families_->output_tokens.Increment(); }

void ServeMetrics::observe_first_token(double time_s) { families_->first_token.Observe(time_s); }

void ServeMetrics::observe_output(const RequestTimes& times) {
  families_->latency.Observe(seconds(times.last_token - times.arrival));
  if (times.output_tokens < 2) return;
  families_->per_token.Observe(seconds(times.last_token - times.first_token) /
                               static_cast<double>(times.output_tokens - 1));
}

std::string ServeMetrics::text(const EngineSnapshot& engine, std::int64_t connections) const {
  std::vector<MetricFamily> families = families_->registry.Collect();
  for (MetricFamily& made : families_of(engine)) families.push_back(std::move(made));
  families.push_back(gauge("sluice_http_connections", "Open connections", connections));
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace sluice
