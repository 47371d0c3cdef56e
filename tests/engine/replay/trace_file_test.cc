#include "engine/replay/trace_file.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/replay/trace_csv.h"

namespace sluice {
namespace {

std::vector<double> arrivals(const RequestTrace& trace) {
  std::vector<double> times;
  for (const TracedRequest& request : trace.requests) times.push_back(request.arrival_s);
  return times;
}

using Lengths = std::vector<std::pair<std::int64_t, std::int64_t>>;
Lengths lengths(const RequestTrace& trace) {
  Lengths pairs;
  for (const TracedRequest& request : trace.requests)
    pairs.emplace_back(request.input_tokens, request.output_tokens);
  return pairs;
}

std::string refusal(const std::string& text, std::optional<TraceFormat> format = std::nullopt) {
  try {
    (void)parse_request_trace(text, "t.csv", format);
  } catch (const Error& error) {
    return error.what();
  }
  return "was read";
}

constexpr const char* azure_header = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
constexpr const char* burst_header =
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n";

TEST(TraceFileTest, ReadsAzureOf2023WithCrLf) {
  const RequestTrace trace = parse_request_trace(
      "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
      "2023-11-16 23:59:59.9799600,4808,10\r\n"
      "2023-11-17 00:00:00.0319601,3180,8",
      "t.csv");
  EXPECT_EQ(trace.format, TraceFormat::azure);
  EXPECT_EQ(arrivals(trace), (std::vector<double>{0, 0.0520001}));
  EXPECT_EQ(lengths(trace), (Lengths{{4808, 10}, {3180, 8}}));
  EXPECT_TRUE(trace.has_arrivals());
}

TEST(TraceFileTest, ReadsAzureOf2024WithAndWithoutZonesAndFractions) {
  const RequestTrace trace = parse_request_trace(std::string(azure_header) +
                                                     "2024-05-10 00:00:00.009930+00:00,12,3\n"
                                                     "2024-05-10 00:00:01+00:00,12,4\n"
                                                     "\n"
                                                     "2024-05-10T02:30:02.5+02:30,1,5\n"
                                                     "2024-05-09 19:00:03-05:00,1,6\n"
                                                     "2024-05-10 00:00:04Z,1,7\n"
                                                     "2024-05-10 00:00:05,1,8\n",
                                                 "t.csv");
  EXPECT_EQ(arrivals(trace), (std::vector<double>{0, 0.99007, 2.49007, 2.99007, 3.99007, 4.99007}));
}

TEST(TraceFileTest, ReadsTimesAsCalendarsCountThem) {
  EXPECT_EQ(parse_timestamp_ns("1970-01-01 00:00:00"), 0);
  // `date -u -d "2024-02-29 12:34:56" +%s` prints 1709210096.
  EXPECT_EQ(parse_timestamp_ns("2024-02-29 12:34:56.000000001"), 1709210096'000000001);
  for (const char* wrong :
       {"", "2024-02-30 00:00:00", "2023-02-29 00:00:00", "2024-13-01 00:00:00",
        "2024-01-01 24:00:00", "2024-01-01 00:60:00", "2024-01-01 00:00:60", "2024-01-01",
        "2024-01-01 00:00", "2024-01-01 00:00:00.", "2024-01-01 00:00:00.0123456789",
        "2024-01-01 00:00:00+0000", "2024-01-01 00:00:00+00:00Z", "1969-12-31 23:59:59",
        "2200-01-01 00:00:00", "+024-01-01 00:00:00", "24-01-01 00:00:00"})
    EXPECT_FALSE(parse_timestamp_ns(wrong)) << wrong;
}

TEST(TraceFileTest, SplitsCsvAsRfc4180) {
  using Fields = std::vector<std::string>;
  EXPECT_EQ(split_csv(R"( a ,"b, c","d ""e""",,f )"), (Fields{"a", "b, c", "d \"e\"", "", "f"}));
  EXPECT_EQ(split_csv("a,\r"), (Fields{"a", ""}));
  EXPECT_EQ(split_csv("\"a\"\r"), (Fields{"a"}));
  EXPECT_FALSE(split_csv("\"a"));
  EXPECT_FALSE(split_csv("\"a\"\""));
}

TEST(TraceFileTest, ReadsBurstGptWithoutFailures) {
  const RequestTrace trace = parse_request_trace(std::string(burst_header) +
                                                     "3,GPT-4,9,0,9,Conversation log\n"
                                                     "5,ChatGPT,472,18,490,Conversation log\n"
                                                     "45.5,ChatGPT,1087,230,1317,API log\n"
                                                     "118,GPT-4,417,0,417,Conversation log\n",
                                                 "t.csv");
  EXPECT_EQ(trace.format, TraceFormat::burstgpt);
  EXPECT_EQ(trace.failed, 2);
  EXPECT_EQ(arrivals(trace), (std::vector<double>{0, 40.5}));
  EXPECT_EQ(lengths(trace), (Lengths{{472, 18}, {1087, 230}}));
}

TEST(TraceFileTest, ReadsBurstGptWithSessions) {
  const RequestTrace trace = parse_request_trace(
      "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log "
      "Type\n"
      "5.0,a-1,3.2,ChatGPT,472,18,490,Conversation log\n",
      "t.csv");
  EXPECT_EQ(trace.format, TraceFormat::burstgpt);
  EXPECT_EQ(lengths(trace), (Lengths{{472, 18}}));
}

TEST(TraceFileTest, ReadsMooncakeWithItsPrefixes) {
  const RequestTrace trace = parse_request_trace(
      "{\"timestamp\": 27482, \"input_length\": 1030, \"output_length\": 52, \"hash_ids\": "
      "[46, 47, 48]}\n"
      "{\"timestamp\": 30535, \"input_length\": 512, \"output_length\": 26, \"hash_ids\": [46]}\n"
      "{\"timestamp\": 30535.5, \"input_length\": 1, \"output_length\": 1}\n",
      "t.jsonl");
  EXPECT_EQ(trace.format, TraceFormat::mooncake);
  EXPECT_EQ(arrivals(trace), (std::vector<double>{0, 3.053, 3.0535}));
  EXPECT_EQ(trace.requests[0].prefix_blocks, (std::vector<std::int64_t>{46, 47, 48}));
  EXPECT_EQ(trace.requests[1].prefix_blocks, (std::vector<std::int64_t>{46}));
  EXPECT_TRUE(trace.requests[2].prefix_blocks.empty());
}

TEST(TraceFileTest, ReadsOurJsonLines) {
  const RequestTrace trace = parse_request_trace(
      "\xef\xbb\xbf{\"arrival_s\": 1.5, \"input_tokens\": 5, \"output_tokens\": 3}\r\n"
      "{\"arrival_s\": 1.75, \"output_tokens\": 4, \"prompt_token_ids\": [7, 8], \"user\": 1}\r\n"
      "{\"arrival_s\": 2, \"input_tokens\": 513, \"output_tokens\": 1, \"hash_ids\": [3, 9]}\r\n",
      "t.jsonl");
  EXPECT_EQ(trace.format, TraceFormat::jsonl);
  EXPECT_EQ(arrivals(trace), (std::vector<double>{0, 0.25, 0.5}));
  EXPECT_EQ(lengths(trace), (Lengths{{5, 3}, {2, 4}, {513, 1}}));
  EXPECT_EQ(trace.requests[1].prompt_token_ids, (std::vector<std::int32_t>{7, 8}));
  EXPECT_EQ(trace.requests[2].prefix_blocks, (std::vector<std::int64_t>{3, 9}));
}

TEST(TraceFileTest, ReadsLengthsWithoutArrivals) {
  const RequestTrace trace = parse_request_trace(
      "[\n  {\n    \"prompt\": 269,\n    \"max_tokens\": 42\n  },\n"
      "  {\"prompt\": 5, \"max_tokens\": 1}\n]",
      "t.json");
  EXPECT_EQ(trace.format, TraceFormat::lengths);
  EXPECT_FALSE(trace.has_arrivals());
  EXPECT_EQ(lengths(trace), (Lengths{{269, 42}, {5, 1}}));
}

TEST(TraceFileTest, KeepsLateArrivalsExactToTheNanosecond) {
  const RequestTrace trace = parse_request_trace(std::string(azure_header) +
                                                     "2023-11-16 00:00:00.0000001,1,1\n"
                                                     "2023-11-26 00:00:00.0000002,1,1\n",
                                                 "t.csv");
  EXPECT_EQ(arrivals(trace)[1], 864000.0000001);
}

TEST(TraceFileTest, FormatsHaveNames) {
  for (const char* name : {"azure", "burstgpt", "jsonl", "lengths", "mooncake"})
    EXPECT_EQ(to_string(parse_trace_format(name).value()), name);
  EXPECT_FALSE(parse_trace_format("Azure"));
}

TEST(TraceFileTest, AFormatThatIsGivenIsNotGuessed) {
  EXPECT_EQ(refusal(std::string(azure_header), TraceFormat::burstgpt),
            "t.csv, line 1: no column Request tokens among "
            "\"TIMESTAMP,ContextTokens,GeneratedTokens\"; expected a header with the columns "
            "Timestamp, Request tokens, Response tokens");
  EXPECT_EQ(refusal("{\"arrival_s\": 0, \"input_tokens\": 5, \"output_tokens\": 3}",
                    TraceFormat::mooncake),
            "t.csv, line 1: no \"input_length\" in the object; correct it or remove it");
}

struct Refusal {
  const char* name;
  std::string text;
  std::string message;
};

class RefusedTraceTest : public testing::TestWithParam<Refusal> {};

TEST_P(RefusedTraceTest, SaysWhereAndWhat) {
  EXPECT_EQ(refusal(GetParam().text), "t.csv" + GetParam().message);
}

std::vector<Refusal> refusals() {
  const std::string azure = azure_header;
  const std::string burst = burst_header;
  const std::string fix = "; correct the line or remove it";
  return {
      {"Empty", "", ": the file is empty; give one that holds requests"},
      {"Blank", " \r\n\n", ": the file is empty; give one that holds requests"},
      {"OnlyHeader", azure, ": no requests in it; expected at least one"},
      {"EmptyList", "[]", ": no requests in it; expected at least one"},
      {"Binary", std::string("PK\0\1", 4),
       ": no text, there is a NUL byte at offset 2; give the CSV or JSON, unpacked"},
      {"MissingColumn", "TIMESTAMP,ContextTokens\r\n2024-01-01 00:00:00,1\r\n",
       ", line 1: no column GeneratedTokens among \"TIMESTAMP,ContextTokens\"; expected a header "
       "with the columns TIMESTAMP, ContextTokens, GeneratedTokens"},
      {"ShortLine", azure + "2024-01-01 00:00:00,1\n",
       ", line 2: 2 columns, the header has 3; get the file again or correct the line"},
      {"OpenQuote", azure + "\"2024-01-01 00:00:00,1,1\n",
       ", line 2: a quote is not closed; expected CSV"},
      {"WrongDate", azure + "2024-02-30 00:00:00,1,1\n",
       ", line 2: TIMESTAMP is \"2024-02-30 00:00:00\", expected a time like "
       "2024-05-10 00:00:00.009930+00:00" +
           fix},
      {"ZeroLength", azure + "2024-02-01 00:00:00,1,1\n2024-02-01 00:00:00,0,1\n",
       ", line 3: ContextTokens is \"0\", expected a whole number from 1 to 16777216" + fix},
      {"HugeLength", azure + "2024-02-01 00:00:00,1,99999999999999999999\n",
       ", line 2: GeneratedTokens is \"99999999999999999999\", expected a whole number from 1 to "
       "16777216" +
           fix},
      {"NoNumber", azure + "2024-02-01 00:00:00,1,1e3\n",
       ", line 2: GeneratedTokens is \"1e3\", expected a whole number from 1 to 16777216" + fix},
      {"Backwards", azure + "2024-02-01 00:00:01,1,1\n\n2024-02-01 00:00:00.75,1,1\n",
       ", line 4: the request comes 0.25 s ahead of the one above; sort the file by time"},
      {"InfiniteTime", burst + "inf,ChatGPT,1,1,2,x\n",
       ", line 2: Timestamp is \"inf\", expected seconds like 12.5" + fix},
      {"NegativeTime", burst + "-1,ChatGPT,1,1,2,x\n",
       ", line 2: Timestamp is \"-1\", expected seconds like 12.5" + fix},
      {"AllFailed", burst + "1,ChatGPT,1,0,1,x\n",
       ": its requests all failed (1 with 0 response tokens); give a file with answers"},
      {"MissingField", "{\"timestamp\": 0}\n",
       ", line 1: no \"input_length\" in the object; correct it or remove it"},
      {"NoObject", "{\"arrival_s\": 0, \"input_tokens\": 1, \"output_tokens\": 1}\n[1]\n",
       ", line 2: no \"arrival_s\" in [1]; correct it or remove it"},
      {"FractionalLength", "{\"arrival_s\": 0, \"input_tokens\": 1.5, \"output_tokens\": 1}",
       ", line 1: \"input_tokens\" is 1.5, expected a whole number from 1 to 16777216; correct it "
       "or remove it"},
      {"TextAsTime", "{\"arrival_s\": \"0\", \"input_tokens\": 1, \"output_tokens\": 1}",
       ", line 1: \"arrival_s\" is \"0\", expected a number from 0 to 4e+09; correct it or remove "
       "it"},
      {"TwoLengths",
       "{\"arrival_s\": 0, \"input_tokens\": 2, \"output_tokens\": 1, \"prompt_token_ids\": [1]}",
       ", line 1: 1 \"prompt_token_ids\", but \"input_tokens\" is 2; leave one of them out"},
      {"NegativeId", "{\"arrival_s\": 0, \"output_tokens\": 1, \"prompt_token_ids\": [-1]}",
       ", line 1: \"prompt_token_ids\" has -1, which is no id"},
      {"TooManyBlocks",
       "{\"timestamp\": 0, \"input_length\": 512, \"output_length\": 1, \"hash_ids\": [1, 2]}",
       ", line 1: \"hash_ids\" has 2 blocks of 512 tokens, but the input has 512 tokens"},
      {"LengthThatIsText", "[{\"prompt\": 1, \"max_tokens\": 1}, {\"prompt\": \"hello\"}]",
       ", entry 2: \"prompt\" is \"hello\", expected a whole number from 1 to 16777216; correct it "
       "or remove it"},
      {"Unknown", "time,in,out\n1,2,3\n",
       ", line 1: \"time,in,out\" begins no trace that is known; expected a header "
       "(TIMESTAMP,ContextTokens,GeneratedTokens or Timestamp,...,Request tokens,Response tokens), "
       "JSON lines with \"arrival_s\" or \"timestamp\", or a JSON list of lengths; or give "
       "--format"},
  };
}

INSTANTIATE_TEST_SUITE_P(All, RefusedTraceTest, testing::ValuesIn(refusals()),
                         [](const auto& test) { return test.param.name; });

TEST(TraceFileTest, BrokenJsonNamesItsLine) {
  const std::string message = refusal(
      "{\"timestamp\": 0, \"input_length\": 1, \"output_length\": 1}\n\n{\"timestamp\": oops}\n");
  EXPECT_EQ(message.find("t.csv, line 3: not valid JSON: "), 0U) << message;
  EXPECT_EQ(message.find('\n'), std::string::npos);
}

}  // namespace
}  // namespace sluice
