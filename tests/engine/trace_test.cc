#include "engine/trace/trace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "engine/trace/gantt.h"
#include "engine/trace/trace_formats.h"
#include "engine/trace/trace_report.h"
#include "tests/engine/trace_data.h"
#include "tests/support/expect_error.h"

namespace sluice {
namespace {

using nlohmann::json;
using testing::expect_error;
using testing::two_sub_batches;

TEST(TraceLinesTest, WhatIsWrittenIsRead) {
  const std::string lines = trace_as_lines(two_sub_batches());
  const Trace again = trace_from_lines(lines, "trace.jsonl");
  EXPECT_EQ(trace_as_lines(again), lines);
  ASSERT_EQ(again.tasks.size(), 5U);
  const TraceTask& stage = again.tasks[2];
  EXPECT_EQ(stage.tag.sub_batch, 1);
  EXPECT_EQ(stage.tag.last_sublayer, Sublayer::fc2);
  EXPECT_EQ(stage.sublayers, (std::vector<TraceSublayer>{{Sublayer::out_proj, 20000, 24000, 0},
                                                         {Sublayer::fc1, 24000, 34000, 0},
                                                         {Sublayer::fc2, 34000, 40000, 0}}));
  EXPECT_EQ(again.transfers[1].bytes, 12000);
  EXPECT_TRUE(again.transfers[1].prefetch);
  EXPECT_EQ(again.events[1].text, "finished 0 (\"a\" story)");
}

/// The lines, with the first `from` replaced.
std::string changed(const std::string& from, const std::string& to) {
  std::string lines = trace_as_lines(two_sub_batches());
  const std::size_t at = lines.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return lines.replace(at, from.size(), to);
}

TEST(TraceLinesTest, WhatIsWrongIsOneLineWithItsPlace) {
  struct Wrong {
    std::string from, to;
    const char* place;
    const char* what;
  };
  const std::vector<Wrong> cases = {
      {"{\"sluice_trace\":3", "{\"sluice_trace\":99", "line 1", "another version"},
      {"{\"sluice_trace\":3", "{\"bench\":1", "line 1", "not a trace"},
      {"\"tasks\":5", "\"tasks\":-5", "line 1", "a number that cannot be"},
      {"\"tier\":\"hbm\"", "\"tier\":\"hbn\"", "line 1", "tier"},
      {"\"events\":3", "\"events\":4", "line 17", "ends early"},
      {"\"events\":3", "\"events\":2", "line 16", "more lines"},
      {"{\"task\":2", "{\"tusk\":2", "line 3", "no line of a trace"},
      {"{\"task\":2", "\"task\":2", "line 3", "no line of a trace"},
      {"\"start\":16000", "\"start\":\"x\"", "line 3", "no line of a trace"},
      {"\"start\":16000", "\"start\":46001", "line 3", "backwards"},
      {"\"end\":46000", "\"end\":100001", "line 3", "outside"},
      {"\"worker\":0,\"submit\":0", "\"worker\":9,\"submit\":0", "line 3", "unknown worker"},
      {"[5,24000,34000,0]", "[5,24001,34000,0]", "line 4", "fill"},
      {"[5,24000,34000,0]", "[77,24000,34000,0]", "line 4", "unknown sublayer"},
      {"{\"from\":0,\"to\":1", "{\"from\":0,\"to\":5", "line 7", "unknown memory node"},
      {"\"event\":\"request\"", "\"event\":\"quest\"", "line 15", "unknown kind"}};
  for (const Wrong& wrong : cases) {
    SCOPED_TRACE(wrong.to);
    expect_error([&] { trace_from_lines(changed(wrong.from, wrong.to), "x/trace.jsonl"); },
                 {"x/trace.jsonl", wrong.place, wrong.what, "record the trace again"});
  }
}

// nlohmann's get<int>() would convert them, which is undefined.
TEST(TraceLinesTest, NumbersThatDoNotFitAreRefused) {
  struct Field {
    std::string text, number;
  };
  const std::vector<Field> fields = {{"\"duration_ns\":100000", "100000"},
                                     {"\"flushes\":0", "0"},
                                     {"\"transfers\":3", "3"},
                                     {"{\"id\":0,\"tier\"", "0"},
                                     {"{\"task\":2", "2"},
                                     {"\"worker\":0,\"submit\"", "0"},
                                     {"\"start\":16000", "16000"},
                                     {"\"after\":[1]", "1"},
                                     {"\"sub_batch\":1", "1"},
                                     {"\"layer\":0", "0"},
                                     {"\"layers\":1", "1"},
                                     {"\"first\":4", "4"},
                                     {"[5,24000,34000,0]", "34000"},
                                     {"\"bytes\":4000", "4000"},
                                     {"{\"from\":0", "0"},
                                     {"{\"node\":1", "1"}};
  for (const Field& field : fields) {
    for (const char* number : {"1e300", "-1e300", "99999999999999999999", "1.5", "\"1\"", "true"}) {
      std::string to = field.text;
      to.replace(to.rfind(field.number), field.number.size(), number);
      SCOPED_TRACE(to);
      EXPECT_THROW(trace_from_lines(changed(field.text, to), "x"), Error);
    }
  }
}

// Their sums must fit, too.
TEST(TraceLinesTest, TimesAndBytesThatNoTraceHasAreRefused) {
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
           {"\"duration_ns\":100000", "\"duration_ns\":9223372036854775807"},
           {"\"bytes\":4000", "\"bytes\":9223372036854775807"},
           {"\"bytes\":4000", "\"bytes\":-9223372036854775808"},
           {"\"bytes\":1000000", "\"bytes\":9223372036854775807"},
           {"\"layer\":0", "\"layer\":2147483647"}}) {
    SCOPED_TRACE(to);
    EXPECT_THROW(trace_from_lines(changed(from, to), "x"), Error);
  }
}

TEST(TraceLinesTest, CpuPlanIsInTheHeaderAndThePicture) {
  Trace trace = two_sub_batches();
  EXPECT_EQ(trace_from_lines(trace_as_lines(trace), "x").cpu_plan, "") << "a trace may have none";
  trace.cpu_plan = R"({"decode":{"groups":[{"cores":[0],"share":1}]}})";
  EXPECT_EQ(trace_from_lines(trace_as_lines(trace), "x").cpu_plan, trace.cpu_plan);
  bool is_shown = false;
  const json picture = json::parse(trace_as_perfetto(trace));
  for (const json& event : picture.at("traceEvents"))
    is_shown = is_shown || (event["name"] == "process_labels" &&
                            event["args"]["labels"] == "CPU plan " + trace.cpu_plan);
  EXPECT_TRUE(is_shown);
  std::string lines = trace_as_lines(trace);
  lines.replace(lines.find(trace.cpu_plan), trace.cpu_plan.size(), "7");
  EXPECT_THROW(trace_from_lines(lines, "x"), Error);
}

// A request's id may hold anything.
TEST(TraceLinesTest, IdsForgeNoLines) {
  Trace trace = two_sub_batches();
  const std::string id = "a\nb\r\x1b[2J\"\\" + std::string(3000, 'y');
  trace.events[1].text = "finished 0 (" + id + ")";
  const std::string lines = trace_as_lines(trace);
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 16);
  EXPECT_EQ(trace_from_lines(lines, "x").events[1].text, trace.events[1].text);
  const std::string perfetto = trace_as_perfetto(trace);
  EXPECT_EQ(json::parse(perfetto).at("traceEvents").size(),
            json::parse(trace_as_perfetto(two_sub_batches())).at("traceEvents").size());
  EXPECT_NE(perfetto.find("a\\nb\\r\\u001b[2J\\\"\\\\yyy"), std::string::npos);
  const std::string paje = trace_as_paje(trace);
  const std::string plain = trace_as_paje(two_sub_batches());
  EXPECT_EQ(std::count(paje.begin(), paje.end(), '\n'),
            std::count(plain.begin(), plain.end(), '\n'));
  EXPECT_NE(paje.find("(a\\nb\\r\\x1b[2J'\\" + std::string(3000, 'y') + ")\""), std::string::npos);
}

TEST(TraceReportTest, NamesOfWorkersAndNodesMoveNoCursor) {
  Trace trace = two_sub_batches();
  trace.workers[0].name = "CPU\n0\x1b[2J";
  trace.nodes[1].name = "CUDA\r0";
  const std::string text = trace_as_text(trace, {0});
  const std::string plain = trace_as_text(two_sub_batches(), {0});
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'),
            std::count(plain.begin(), plain.end(), '\n'));
  EXPECT_EQ(text.find_first_of("\r\x1b"), std::string::npos);
  EXPECT_NE(text.find("CPU\\n0\\x1b[2J"), std::string::npos) << text;
}

TEST(TraceLinesTest, AFileThatEndsAnywhereIsAnError) {
  const std::string lines = trace_as_lines(two_sub_batches());
  for (std::size_t size = 0; size + 1 < lines.size(); ++size)
    EXPECT_THROW(trace_from_lines(lines.substr(0, size), "x"), Error) << size;
}

TEST(PerfettoTest, SublayersLieInsideTheirTasks) {
  const json events = json::parse(trace_as_perfetto(two_sub_batches())).at("traceEvents");
  int sublayers = 0;
  json task;
  for (const json& event : events) {
    if (event.at("ph") != "X") continue;
    if (event.at("cat") == "task") task = event;
    if (event.at("cat") != "sublayer") continue;
    ++sublayers;
    EXPECT_EQ(event.at("tid"), task.at("tid"));
    EXPECT_EQ(event.at("args"), task.at("args"));
    EXPECT_GE(event.at("ts"), task.at("ts"));
    EXPECT_LE(event.at("ts").get<double>() + event.at("dur").get<double>(),
              task.at("ts").get<double>() + task.at("dur").get<double>() + 1e-9);
  }
  EXPECT_EQ(sublayers, 9);
}

TEST(PerfettoTest, TransfersMemoryAndEventsAreThere) {
  const json events = json::parse(trace_as_perfetto(two_sub_batches())).at("traceEvents");
  std::map<std::string, int> counts;
  for (const json& event : events) ++counts[event.at("ph").get<std::string>()];
  EXPECT_EQ(counts["b"], 3);
  EXPECT_EQ(counts["e"], 3);
  EXPECT_EQ(counts["C"], 4);
  EXPECT_EQ(counts["i"], 3);
}

TEST(DotTest, EveryDependencyIsAnEdge) {
  const std::string dot = trace_as_dot(two_sub_batches());
  for (const char* part : {"t1 -> t2;", "t2 -> t4;", "t4 -> t5;", "label=\"iteration 1\"",
                           "t3 [label=\"stage 4-6\\nlayer 0, iteration 0.1\\n20.0 us\"]"}) {
    EXPECT_NE(dot.find(part), std::string::npos) << part;
  }
  EXPECT_EQ(dot.find("t1 -> t3"), std::string::npos);
}

TEST(GanttTest, PicturesAreWhole) {
  const std::string svg = draw_gantt(two_sub_batches(), {0, 1}, PictureFormat::svg);
  EXPECT_NE(svg.find("<svg"), std::string::npos);
  EXPECT_TRUE(svg.ends_with("</svg>\n")) << svg.substr(svg.size() - 20);
  const std::string png = draw_gantt(two_sub_batches(), {0}, PictureFormat::png);
  EXPECT_EQ(png.substr(1, 3), "PNG");
  EXPECT_EQ(png.substr(png.size() - 8, 4), "IEND");
}

/// In points.
double height_of(const std::string& svg) {
  const std::size_t at = svg.find("height=\"");
  EXPECT_NE(at, std::string::npos);
  return std::stod(svg.substr(at + 8));
}

TEST(GanttTest, MoreIterationsTakeMoreRoomUntilCairosLimit) {
  Trace trace = two_sub_batches();
  const double one = height_of(draw_gantt(trace, {0}, PictureFormat::svg));
  EXPECT_GT(height_of(draw_gantt(trace, {0, 1}, PictureFormat::svg)), one);
  const TraceTask task = trace.tasks.front();
  for (int i = 0; i < 3000; ++i) trace.tasks.insert(trace.tasks.begin(), task);
  const double most = height_of(draw_gantt(trace, {0}, PictureFormat::svg));
  EXPECT_GT(most, 8000);
  EXPECT_LE(most, 32767.0 / 2);  // two pixels a point
}

/// Of sub-batches; their upper edges are at 31 points.
int keys_in_legend(std::int16_t num_sub_batches) {
  Trace trace = two_sub_batches();
  for (std::int16_t i = 0; i < num_sub_batches; ++i) {
    trace.tasks.push_back(trace.tasks.front());
    trace.tasks.back().tag.sub_batch = i;
  }
  const std::string svg = draw_gantt(trace, {0}, PictureFormat::svg);
  int found = 0;
  for (std::size_t at = svg.find(" 31 L "); at != std::string::npos;
       at = svg.find(" 31 L ", at + 1))
    ++found;
  return found;
}

TEST(GanttTest, TheLegendOfManySubBatchesStaysOnThePage) {
  EXPECT_GT(keys_in_legend(3), keys_in_legend(2));
  EXPECT_EQ(keys_in_legend(40), keys_in_legend(3));
}

TEST(GanttTest, ATaskOfManyLayersHasTheRoomOfAsManyTasks) {
  Trace trace = two_sub_batches();
  const double one = height_of(draw_gantt(trace, {0}, PictureFormat::svg));
  TraceTask& task = trace.tasks[2];
  const std::vector<TraceSublayer> of_a_layer = std::exchange(task.sublayers, {});
  task.tag.num_layers = 20;
  for (std::int32_t layer = 0; layer < 20; ++layer) {
    for (TraceSublayer at : of_a_layer) {
      at.layer = layer;
      task.sublayers.push_back(at);
    }
  }
  EXPECT_GT(height_of(draw_gantt(trace, {0}, PictureFormat::svg)), one);
}

/// How many boxes of this fill an SVG has, and their upper edges.
std::multiset<double> upper_edges(const std::string& svg, const std::string& fill) {
  std::multiset<double> found;
  for (std::size_t at = svg.find(fill); at != std::string::npos; at = svg.find(fill, at + 1)) {
    std::istringstream path(svg.substr(svg.find(" d=\"M ", at) + 6, 60));
    double x = 0;
    double y = 0;
    path >> x >> y;
    found.insert(y);
  }
  return found;
}
const std::string fetch = "rgb(90%,62%,0%)";
const std::string prefetch = "rgb(78%,90%,66%)";

TEST(GanttTest, FetchAndPrefetchHaveTheirKeysBesideTheirBoxes) {
  // Of iteration 0: fetches 0-5 and 41-45, prefetch 5-20; a key each.
  const std::string svg = draw_gantt(two_sub_batches(), {0}, PictureFormat::svg);
  EXPECT_EQ(upper_edges(svg, fetch).size(), 3U) << svg;
  EXPECT_EQ(upper_edges(svg, prefetch).size(), 2U);
  Trace still = two_sub_batches();
  still.transfers.clear();
  EXPECT_EQ(draw_gantt(still, {0}, PictureFormat::svg).find(fetch), std::string::npos);
}

TEST(GanttTest, TransfersThatOverlapDoNotHideEachOther) {
  Trace trace = two_sub_batches();
  trace.transfers.resize(1);
  trace.transfers[0] = {.from = 0, .to = 1, .bytes = 1, .start_ns = 20000, .end_ns = 30000};
  const double alone = height_of(draw_gantt(trace, {0}, PictureFormat::svg));
  const auto add = [&](std::int64_t start_ns, std::int64_t end_ns) {
    trace.transfers.push_back(trace.transfers[0]);
    trace.transfers.back().start_ns = start_ns;
    trace.transfers.back().end_ns = end_ns;
  };
  add(30000, 35000);  // where the first one ends
  EXPECT_EQ(height_of(draw_gantt(trace, {0}, PictureFormat::svg)), alone);
  add(22000, 24000);  // inside of the first
  add(23000, 28000);  // beside both
  add(24000, 25000);  // where the third one ends
  const std::string svg = draw_gantt(trace, {0}, PictureFormat::svg);
  EXPECT_GT(height_of(svg), alone);
  std::multiset<double> edges = upper_edges(svg, fetch);
  edges.erase(edges.begin());  // the key's
  const std::set<double> lanes(edges.begin(), edges.end());
  ASSERT_EQ(lanes.size(), 3U);
  const double top = *lanes.begin();
  EXPECT_EQ(edges, (std::multiset<double>{top, top, top + 14, top + 14, top + 28}));
  for (int i = 0; i < 40; ++i) add(21000, 29000);
  EXPECT_LT(height_of(draw_gantt(trace, {0}, PictureFormat::svg)), height_of(svg) + 100);
}

TEST(GanttTest, ARangeOfTimeDrawsWhatIsInIt) {
  const Trace trace = two_sub_batches();  // iteration 0: from 0 to 67 us
  const std::string svg =
      draw_gantt(trace, {0}, PictureFormat::svg, {.from_ns = 42000, .to_ns = 46000});
  EXPECT_EQ(upper_edges(svg, fetch).size(), 2U) << "one key, and 41-45";
  EXPECT_EQ(upper_edges(svg, prefetch).size(), 1U) << "its key alone";
  const auto drawn = [&](std::int64_t from_ns, std::int64_t to_ns) {
    return draw_gantt(trace, {0}, PictureFormat::png, {.from_ns = from_ns, .to_ns = to_ns});
  };
  EXPECT_TRUE(drawn(0, 67000) == draw_gantt(trace, {0}, PictureFormat::png)) << "all of it";
  EXPECT_FALSE(drawn(0, 66000) == drawn(0, 67000));
  EXPECT_TRUE(drawn(0, 1000000) == drawn(0, 67000)) << "no more than there is";
  expect_error([&] { drawn(67000, 70000); }, {"iteration 0 takes 67 us", "at 67 us"});
}

TEST(GanttTest, APartOfALongIterationTakesLessRoom) {
  Trace trace = two_sub_batches();
  const TraceTask task = trace.tasks.front();
  for (int i = 0; i < 400; ++i) {
    trace.tasks.push_back(task);
    trace.tasks.back().id = 100 + i;
    trace.tasks.back().start_ns = 100000 + 1000 * i;
    trace.tasks.back().end_ns = 101000 + 1000 * i;
    trace.tasks.back().sublayers = {
        {Sublayer::qkv, 100000 + 1000 * i, 101000 + 1000 * i, task.tag.layer}};
  }
  const double all = height_of(draw_gantt(trace, {0}, PictureFormat::svg));
  const double part =
      height_of(draw_gantt(trace, {0}, PictureFormat::svg, {.from_ns = 100000, .to_ns = 140000}));
  EXPECT_LT(part, all / 5);  // a tenth of its tasks
}

TEST(GanttTest, AnUnknownIterationIsAnError) {
  expect_error([] { draw_gantt(two_sub_batches(), {9}, PictureFormat::svg); }, {"no iteration 9"});
}

}  // namespace
}  // namespace sluice
