// The Paje file as pajeng, which others wrote, reads it.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "engine/trace/trace_analysis.h"
#include "engine/trace/trace_formats.h"
#include "perfmodels/placement.h"
#include "tests/engine/pj_dump.h"
#include "tests/engine/trace_data.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

using testing::of_type;
using testing::two_sub_batches;
using Lines = std::vector<std::vector<std::string>>;

class PajeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!testing::has_pj_dump()) GTEST_SKIP() << "pajeng is not installed";
    folder_.write("paje.trace", trace_as_paje(two_sub_batches()));
    lines_ = testing::pj_dump(folder_.file("paje.trace"));
  }

  test::TemporaryFolder folder_;
  Lines lines_;
};

TEST_F(PajeTest, StatesSumToTheBusyTimes) {
  std::map<std::string, double> busy_ms;
  for (const auto& line : of_type(lines_, "State", "Sublayer"))
    busy_ms[line.at(1)] += std::stod(line.at(5));
  for (const auto& line : of_type(lines_, "State", "Task"))
    busy_ms[line.at(1)] += std::stod(line.at(5));
  EXPECT_DOUBLE_EQ(busy_ms["CPU 0"], 0.040);
  EXPECT_DOUBLE_EQ(busy_ms["CPU 0 tasks"], 0.040);
  EXPECT_DOUBLE_EQ(busy_ms["CUDA 0.0"], 0.050);
  EXPECT_DOUBLE_EQ(busy_ms["CUDA 0.0 tasks"], 0.050);
}

TEST_F(PajeTest, StatesAreNamedBySublayerWithLayerAndSubBatchAsValues) {
  const Lines states = of_type(lines_, "State", "Sublayer");
  ASSERT_EQ(states.size(), 9U);
  for (const auto& state : states) {
    if (state.at(1) != "CUDA 0.0" || std::stod(state.at(3)) != 0.024) continue;
    // kind, container, type, start, end, duration, depth, value, then the fields of our own
    const std::vector<std::string> rest(state.begin() + 7, state.end());
    EXPECT_EQ(rest, (std::vector<std::string>{"fc1", "0", "1", "1", "0", "decode", "2", "3"}));
    return;
  }
  FAIL() << "no state at 0.024 ms";
}

TEST_F(PajeTest, EverySublayerHasItsNameAsAState) {
  Trace trace = two_sub_batches();
  TraceTask all = trace.tasks.front();
  all.sublayers.clear();
  std::set<std::string> names;
  for (int i = 0; i <= static_cast<int>(last_sublayer_value); ++i) {
    all.sublayers.push_back({static_cast<Sublayer>(i), 1000 * i, 1000 * (i + 1), 0});
    names.emplace(to_string(static_cast<Sublayer>(i)));
  }
  EXPECT_EQ(names.size(), all.sublayers.size());
  trace.tasks = {all};
  folder_.write("all", trace_as_paje(trace));
  std::set<std::string> read;
  for (const auto& state : of_type(testing::pj_dump(folder_.file("all")), "State", "Sublayer"))
    read.insert(state.at(7));
  EXPECT_EQ(read, names);
}

TEST_F(PajeTest, LinksCarryBytes) {
  const Lines links = [&] {
    Lines found;
    for (const auto& line : lines_) {
      if (line.at(0) == "Link") found.push_back(line);
    }
    return found;
  }();
  ASSERT_EQ(links.size(), 3U);
  double bytes = 0;
  double length_ms = 0;
  for (const auto& link : links) {
    EXPECT_EQ(link.at(2), "Transfer");
    length_ms += std::stod(link.at(5));
    bytes += std::stod(link.back());
  }
  EXPECT_DOUBLE_EQ(bytes, 18000);
  EXPECT_NEAR(length_ms, 0.024, 1e-9);
}

TEST_F(PajeTest, IterationsRequestsAndMemoryAreThere) {
  EXPECT_EQ(of_type(lines_, "Event", "Iteration").size(), 2U);
  const Lines requests = of_type(lines_, "Event", "Request");
  ASSERT_EQ(requests.size(), 1U);
  EXPECT_EQ(requests[0].at(4), "finished 0 ('a' story)");
  const Lines memory = of_type(lines_, "Variable", "Memory in use");
  ASSERT_FALSE(memory.empty());
  bool found = false;
  for (const auto& line : memory)
    found |= line.at(1) == "hbm (CUDA 0)" && std::stod(line.back()) == 16000;
  EXPECT_TRUE(found);
}

TEST_F(PajeTest, EventsOfOneMomentAreAllThere) {
  for (const bool at_the_end : {false, true}) {
    SCOPED_TRACE(at_the_end);
    Trace trace = two_sub_batches();
    const std::int64_t at_ns = at_the_end ? trace.duration_ns : 70000;
    trace.events.clear();
    for (int i = 0; i < 16; ++i)
      trace.events.push_back({TraceEvent::Kind::request, at_ns, "finished " + std::to_string(i)});
    folder_.write("events", trace_as_paje(trace));
    std::set<std::string> read;
    for (const auto& event : of_type(testing::pj_dump(folder_.file("events")), "Event", "Request"))
      read.insert(event.at(4));
    EXPECT_EQ(read.size(), 16U);
  }
}

TEST_F(PajeTest, IdsOfAnyLengthAndContentAreRead) {
  Trace trace = two_sub_batches();
  trace.events[1].text = "finished 0 (a\nb\"" + std::string(3000, 'x') + ")";
  folder_.write("id", trace_as_paje(trace));
  const Lines requests = of_type(testing::pj_dump(folder_.file("id")), "Event", "Request");
  ASSERT_EQ(requests.size(), 1U);
  EXPECT_EQ(requests[0].back(), "finished 0 (a\\nb'" + std::string(3000, 'x') + ")");
}

}  // namespace
}  // namespace sluice
