#include "engine/replay/options.h"

#include <gtest/gtest.h>

#include <functional>

#include "base/error.h"

namespace sluice {
namespace {

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "was taken";
}

TEST(ReplayOptionsTest, ArrivalsAreReadAndWritten) {
  for (const char* text : {"trace", "all", "closed:8", "poisson:2.5"}) {
    const auto all = parse_arrivals(text);
    ASSERT_EQ(all.size(), 1U) << text;
    EXPECT_EQ(to_string(all.front()), text);
  }
  const auto rates = parse_arrivals("poisson:1,2,4,1e1,2");
  ASSERT_EQ(rates.size(), 4U);  // each once
  EXPECT_EQ(rates[1].kind, ArrivalKind::poisson);
  EXPECT_EQ(rates[1].rate_per_s, 2);
  EXPECT_EQ(rates[3].rate_per_s, 10);
  EXPECT_EQ(parse_arrivals("closed:8").front().in_flight, 8);
}

TEST(ReplayOptionsTest, ArrivalsThatAreNoneAreRefused) {
  for (const char* text : {"", "poisson", "Trace", "trace:1", "burst:1"}) {
    EXPECT_EQ(
        refusal([&] { parse_arrivals(text); }),
        std::string("--arrivals ") + text + ": expected trace, poisson:RATES, all or closed:N");
  }
  for (const char* text : {"poisson:", "poisson:0", "poisson:-1", "poisson:nan", "poisson:inf",
                           "poisson:1,,2", "poisson:1 2", "poisson:1e400", "poisson:1e-9"}) {
    EXPECT_EQ(refusal([&] { parse_arrivals(text); }),
              std::string("--arrivals ") + text +
                  ": expected rates from 1e-06 to 1000000 requests/s, like poisson:1,2.5");
  }
  for (const char* text : {"closed:", "closed:0", "closed:1.5", "closed:99999999999999999999"}) {
    EXPECT_EQ(refusal([&] { parse_arrivals(text); }),
              std::string("--arrivals ") + text +
                  ": expected a whole number from 1 to 10000000, like closed:8");
  }
}

TEST(ReplayOptionsTest, LengthsAreAList) {
  const auto lengths = parse_lengths("uniform:1000,50,uniform:2000,100");
  ASSERT_EQ(lengths.size(), 2U);
  EXPECT_EQ(lengths[0].input_tokens, 1000);
  EXPECT_EQ(lengths[0].output_tokens, 50);
  EXPECT_EQ(lengths[1].input_tokens, 2000);
  EXPECT_EQ(lengths[1].output_tokens, 100);
  EXPECT_EQ(parse_lengths("uniform:1,1").size(), 1U);
}

TEST(ReplayOptionsTest, LengthsThatAreNoneAreRefused) {
  for (const char* text : {"", "uniform:", "uniform:1000", "uniform:0,1", "uniform:1,0",
                           "uniform:1,2,3", "uniform:1,2,3,4", "uniform:1.5,2", "1000,100",
                           "uniform:8388609,1", "uniform:1,2,uniform:3"}) {
    EXPECT_EQ(refusal([&] { parse_lengths(text); }),
              std::string("--lengths ") + text +
                  ": expected input and output tokens from 1 to 8388608, like uniform:1000,100 or "
                  "uniform:1000,50,uniform:1000,100");
  }
}

TEST(ReplayOptionsTest, SloHasOneTargetOrTwo) {
  const Slo both = parse_slo("tpot=0.1,ttft=1");
  EXPECT_EQ(both.ttft_s, 1);
  EXPECT_EQ(both.tpot_s, 0.1);
  const Slo one = parse_slo("ttft=2.5");
  EXPECT_EQ(one.ttft_s, 2.5);
  EXPECT_FALSE(one.tpot_s);
  for (const char* text : {"", "ttft", "ttft=", "ttft=0", "ttft=-1", "ttft=nan", "ttft=1,ttft=2",
                           "latency=1", "ttft=1,", "ttft=1s"}) {
    EXPECT_EQ(refusal([&] { parse_slo(text); }),
              std::string("--slo ") + text +
                  ": expected seconds above 0, each once, like ttft=1,tpot=0.1");
  }
}

TEST(ReplayOptionsTest, FormatsAreNamed) {
  EXPECT_EQ(parse_format("mooncake"), TraceFormat::mooncake);
  EXPECT_EQ(refusal([] { parse_format("csv"); }),
            "--format csv: expected azure, burstgpt, jsonl, lengths or mooncake");
}

}  // namespace
}  // namespace sluice
