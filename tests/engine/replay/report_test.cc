#include "engine/replay/report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace sluice {
namespace {

using nlohmann::ordered_json;

ReplayPoint point(const char* policy, double rate_per_s, double latency_s, double attainment) {
  ReplayPoint made;
  made.model = "llama-2-7b";
  made.machine = "t4";
  made.policy = policy;
  made.workload = "osc.json";
  made.arrivals = "poisson:2";
  made.seed = 7;
  made.rate_per_s = rate_per_s;
  made.statistics = {.requests = 10,
                     .completed = 8,
                     .rejected = 2,
                     .requests_per_s = 1.5,
                     .output_tokens_per_s = 150,
                     .per_token_latency_s = Distribution{latency_s, 0.2, 0.3, 0.4},
                     .ttft_s = Distribution{1, 2, 3, 4},
                     .tpot_s = std::nullopt,
                     .queue_s = Distribution{0.5, 0.25, 0.75, 1},
                     .slo_attainment = attainment};
  made.one_sub_batch_iterations = 11;
  made.two_sub_batch_iterations = 12;
  made.swapped_in_tokens = 13;
  made.swapped_out_tokens = 14;
  made.preemptions = 15;
  made.prefix_hit_tokens = 16;
  made.busy_share = {{"gpu", 0.5}, {"link to gpu", 0.25}};
  made.lower_bound_requests_per_s = 2.5;
  made.binding_resource = "gpu";
  made.littles_law = LittlesLaw{.window = {0, 20},
                                .mean_in_system = 4,
                                .arrivals_per_s = 2,
                                .mean_time_s = 1.98,
                                .relative_error = 0.01};
  return made;
}

TEST(ReplayReportTest, JsonHasTheFieldsOfTheReference) {
  std::vector<ReplayPoint> points = {point("neo", 2, 0.1, 0.95)};
  set_goodput(points);
  const auto found = ordered_json::parse(format_replay(OutputFormat::json, points));
  EXPECT_EQ(found, ordered_json::parse(R"([{
    "model": "llama-2-7b", "machine": "t4", "policy": "neo", "workload": "osc.json",
    "arrivals": "poisson:2", "seed": 7, "rate_per_s": 2.0,
    "requests": 10, "completed": 8, "rejected": 2,
    "requests_per_s": 1.5, "output_tokens_per_s": 150.0,
    "per_token_latency_s": {"mean": 0.1, "p50": 0.2, "p90": 0.3, "p99": 0.4},
    "ttft_s": {"mean": 1.0, "p50": 2.0, "p90": 3.0, "p99": 4.0},
    "tpot_s": {"mean": null, "p50": null, "p90": null, "p99": null},
    "queue_s": {"mean": 0.5, "p50": 0.25, "p90": 0.75, "p99": 1.0},
    "slo_attainment": 0.95, "goodput_per_s": 2.0,
    "iterations": {"one_sub_batch": 11, "two_sub_batches": 12},
    "swapped_tokens": {"in": 13, "out": 14}, "preemptions": 15, "prefix_hit_tokens": 16,
    "busy_share": {"gpu": 0.5, "link to gpu": 0.25},
    "lower_bound_requests_per_s": 2.5, "binding_resource": "gpu", "little_error": 0.01}])"));
}

TEST(ReplayReportTest, WhatIsNotKnownIsNull) {
  const auto found = ordered_json::parse(format_replay(OutputFormat::json, {ReplayPoint{}})).at(0);
  for (const char* field :
       {"rate_per_s", "requests_per_s", "output_tokens_per_s", "slo_attainment", "goodput_per_s",
        "lower_bound_requests_per_s", "binding_resource", "little_error"})
    EXPECT_TRUE(found.at(field).is_null()) << field;
  EXPECT_EQ(format_replay(OutputFormat::json, {}), "[]\n");
}

TEST(ReplayReportTest, CsvHasAColumnForEachFigureOfAnyPoint) {
  std::vector<ReplayPoint> points = {point("neo", 2, 0.1, 0.95), point("gpu,only", 2, 0.1, 0.95)};
  points[1].busy_share = {{"cpu", 0.125}};
  const std::string csv = format_replay(OutputFormat::csv, points);
  EXPECT_EQ(
      csv,
      "model,machine,policy,workload,arrivals,seed,rate_per_s,requests,completed,rejected,"
      "requests_per_s,output_tokens_per_s,per_token_latency_s_mean,per_token_latency_s_p50,"
      "per_token_latency_s_p90,per_token_latency_s_p99,ttft_s_mean,ttft_s_p50,ttft_s_p90,"
      "ttft_s_p99,tpot_s_mean,tpot_s_p50,tpot_s_p90,tpot_s_p99,queue_s_mean,queue_s_p50,"
      "queue_s_p90,queue_s_p99,slo_attainment,goodput_per_s,iterations_one_sub_batch,"
      "iterations_two_sub_batches,swapped_tokens_in,swapped_tokens_out,preemptions,"
      "prefix_hit_tokens,busy_share_gpu,busy_share_link_to_gpu,lower_bound_requests_per_s,"
      "binding_resource,little_error,busy_share_cpu\n"
      "llama-2-7b,t4,neo,osc.json,poisson:2,7,2.0,10,8,2,1.5,150.0,0.1,0.2,0.3,0.4,1.0,2.0,3.0,"
      "4.0,,,,,0.5,0.25,0.75,1.0,0.95,,11,12,13,14,15,16,0.5,0.25,2.5,gpu,0.01,\n"
      "llama-2-7b,t4,\"gpu,only\",osc.json,poisson:2,7,2.0,10,8,2,1.5,150.0,0.1,0.2,0.3,0.4,1.0,"
      "2.0,3.0,4.0,,,,,0.5,0.25,0.75,1.0,0.95,,11,12,13,14,15,16,,,2.5,gpu,0.01,0.125\n");
}

TEST(ReplayReportTest, TheTableNamesWhatDiffers) {
  std::vector<ReplayPoint> points = {point("neo", 2, 0.1, 0.95), point("gpu-only", 2, 4, 0.5)};
  points[1].arrivals = "poisson:4";
  points[1].littles_law->relative_error = 0.002;
  set_goodput(points);
  const std::string expected =
      R"(model: llama-2-7b · machine: t4 · requests: osc.json

arrivals   policy    completed  requests/s  tokens/s  per token        P90  TTFT P50     P99  )"
      R"(TPOT P50  P99  SLO kept  at most/s  bound by
poisson:2  neo         8 of 10         1.5       150  100.00 ms  300.00 ms    2.00 s  4.00 s  )"
      R"(-         -      95.0 %        2.5  gpu
poisson:4  gpu-only    8 of 10         1.5       150     4.00 s  300.00 ms    2.00 s  4.00 s  )"
      R"(-         -      50.0 %        2.5  gpu

goodput of neo (llama-2-7b, t4, osc.json): 2 requests/s, the highest rate at which 90 % keep the SLO
Little's law holds within 1 %: at most off, from 0 to 20 s, 4 requests in the system, )"
      "2 requests/s x 1.98 s\n";
  EXPECT_EQ(format_replay(OutputFormat::table, points), expected);
}

TEST(ReplayReportTest, GoodputIsThatOfTheWholeCurve) {
  std::vector<ReplayPoint> points = {point("neo", 1, 0.1, 1), point("neo", 3, 0.1, 0.9),
                                     point("neo", 5, 0.1, 0.8), point("gpu-only", 1, 0.1, 0.8),
                                     point("neo", 9, 0.1, 1)};
  points[4].machine = "a10g";
  set_goodput(points);
  EXPECT_EQ(points[0].goodput_per_s, 3);
  EXPECT_EQ(points[1].goodput_per_s, 3);
  EXPECT_EQ(points[2].goodput_per_s, 3);
  EXPECT_FALSE(points[3].goodput_per_s);
  EXPECT_EQ(points[4].goodput_per_s, 9);
}

}  // namespace
}  // namespace sluice
