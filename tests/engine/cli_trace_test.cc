// `--trace` and `sluice trace` from outside.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "tests/engine/pj_dump.h"
#include "tests/support/cli_process.h"
#include "tests/support/small_disk.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::Arguments;
using testing::CliProcess;
using testing::CliResult;
using testing::expect_failure;
using testing::operator+;
using test::TemporaryFolder;
using testing::run_cli;

const std::set<std::string> all_files = {"dag.dot", "paje.trace", "perfetto.json", "trace.jsonl"};

std::set<std::string> files_in(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename());
  return names;
}

Arguments generate(const std::string& folder, const Arguments& more = {}) {
  return Arguments{"generate",
                   "--prompt",
                   "Once upon a time",
                   "--max-tokens",
                   "12",
                   "--trace",
                   folder,
                   "--temperature",
                   "0",
                   "-q",
                   "--policy",
                   "cpu-only"} +
         more;
}

json read_trace(const std::string& folder, const Arguments& more = {}) {
  const CliResult result = run_cli(Arguments{"trace", folder, "--json"} + more);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  return json::parse(result.out);
}

TEST(CliTraceTest, OneRunAtATimeRecordsIntoAFolder) {
  const TemporaryFolder folder;
  const std::string trace = folder.file("trace");
  fs::create_directory(trace);
  const int held = open(trace.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  ASSERT_EQ(flock(held, LOCK_EX | LOCK_NB), 0);
  expect_failure(run_cli(generate(trace)), 1, {"--trace", "another run"});
  close(held);
  EXPECT_EQ(run_cli(generate(trace)).exit_code, 0);
  EXPECT_EQ(files_in(trace), all_files);
}

TEST(CliTraceTest, GenerateLeavesEveryFile) {
  const TemporaryFolder folder;
  const std::string trace = folder.file("trace");
  const CliResult plain = run_cli({"generate", "--prompt", "Once upon a time", "--max-tokens", "12",
                                   "--temperature", "0", "-q", "--policy", "cpu-only"});
  const CliResult result = run_cli(generate(trace));
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err, "");
  EXPECT_EQ(result.out, plain.out);
  EXPECT_EQ(files_in(trace), all_files);
  const json report = read_trace(trace);
  EXPECT_EQ(report.at("lost_tasks"), 0);
  // Iterations times (6 layers as one, embedding, head, sampling); in the prompt's, the last layer
  // is two more tasks, and two drop rows between them.
  EXPECT_EQ(report.at("tasks"), 12 * 4 + 4);
  EXPECT_EQ(report.at("workers").size(), 1U);
  EXPECT_EQ(report.at("workers")[0].at("tasks"), 12 * 4 + 4);
  EXPECT_EQ(report.at("iterations")[0].at("tasks"), 4);
  EXPECT_EQ(report.at("iterations")[0].at("critical_path").size(), 4U);
  EXPECT_GT(report.at("peak_bytes")[0].at("bytes"), 6000000);  // tiny's weights in bf16
  testing::expect_pajeng_agrees(trace, report);
  const json perfetto = json::parse(testing::content_of(trace + "/perfetto.json"));
  EXPECT_GT(perfetto.at("traceEvents").size(), 12U * 9U);
}

TEST(CliTraceTest, BatchesPoliciesAndUnfusedTasksAreTraced) {
  const TemporaryFolder folder;
  const std::string trace = folder.file("trace");
  folder.write(
      "prompts",
      "{\"id\":\"a\\n\\u0007b\",\"prompt\":\"Once\"}\n{\"id\":\"b\",\"prompt\":\"The\"}\n");
  const CliResult result =
      run_cli({"generate", "--prompts", folder.file("prompts"), "--batch", "2", "--max-tokens", "5",
               "--policy", "neo", "--no-fuse", "--ignore-eos", "-q", "--trace", trace});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json report = read_trace(trace);
  EXPECT_EQ(report.at("tasks"), 5 * (5 * 6 + 3) + 2);  // the prompts drop rows of attention and x
  EXPECT_EQ(report.at("workers").size(), 1U);
  testing::expect_pajeng_agrees(trace, report);
  const std::string lines = testing::content_of(trace + "/trace.jsonl");
  for (const char* event : {"admitted 0 (a\\n\\u0007b)", "first-token 1 (b)", "finished 1 (b)"})
    EXPECT_NE(lines.find(event), std::string::npos) << event;
}

TEST(CliTraceTest, BenchIsTraced) {
  const TemporaryFolder folder;
  const std::string trace = folder.file("trace");
  const CliResult result = run_cli({"bench", "--prompt-tokens", "0", "--gen-tokens", "4",
                                    "--repeat", "2", "--policy", "cpu-only", "--trace", trace});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.err.find("sluice trace " + trace), std::string::npos) << result.err;
  EXPECT_EQ(files_in(trace), all_files);
  const json report = read_trace(trace);
  EXPECT_EQ(report.at("tasks"), 2 * 4 * 4);
  testing::expect_pajeng_agrees(trace, report);
}

TEST(CliTraceTest, GanttPicturesAreDrawn) {
  const TemporaryFolder folder;
  const std::string trace = folder.file("trace");
  ASSERT_EQ(run_cli(generate(trace)).exit_code, 0);
  const CliResult text =
      run_cli({"trace", trace, "--iterations", "3,5", "--gantt", folder.file("g.png")});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  for (const char* part : {"worker", "CPU 0", "attention", "the longest gaps", "no transfers",
                           "iteration 3:", "iteration 5:"})
    EXPECT_NE(text.out.find(part), std::string::npos) << part << "\n" << text.out;
  EXPECT_EQ(testing::content_of(folder.file("g.png")).substr(1, 3), "PNG");
  const CliResult part = run_cli({"trace", trace, "--iterations", "3", "--gantt",
                                  folder.file("part.svg"), "--from-ms", "0.01", "--to-ms", "0.05"});
  EXPECT_EQ(part.exit_code, 0) << part.err;
  EXPECT_TRUE(testing::content_of(folder.file("part.svg")).ends_with("</svg>\n"));
  ASSERT_EQ(run_cli({"trace", trace, "--gantt", folder.file("g.svg")}).exit_code, 0);
  EXPECT_TRUE(testing::content_of(folder.file("g.svg")).ends_with("</svg>\n"));
  EXPECT_EQ(files_in(trace), all_files);
}

TEST(CliTraceTest, AFolderThatHoldsATraceIsLeftAlone) {
  const TemporaryFolder folder;
  const std::string trace = folder.file("trace");
  ASSERT_EQ(run_cli(generate(trace)).exit_code, 0);
  const auto before = testing::snapshot(trace);
  expect_failure(run_cli(generate(trace)), 1, {trace, "of an earlier run", "another folder"});
  EXPECT_EQ(testing::snapshot(trace), before);
}

TEST(CliTraceTest, FoldersThatCannotBeWrittenAreOneLine) {
  const TemporaryFolder folder;
  folder.write("file", "x");
  expect_failure(run_cli(generate(folder.file("file"))), 1, {folder.file("file"), "it is a file"});
  expect_failure(run_cli(generate("/proc/sluice-trace")), 1,
                 {"/proc/sluice-trace", "cannot make the folder"});
  expect_failure(run_cli(generate(folder.file("a/b"))), 1, {folder.file("a/b"), "No such file"});
  expect_failure(run_cli(generate("")), 2, {"--trace needs"});
  expect_failure(run_cli({"bench", "--sweep", "--trace", folder.file("t")}), 2,
                 {"leave out --trace"});
  EXPECT_FALSE(fs::exists(folder.file("t")));
}

TEST(CliTraceTest, ARunThatFailsBeforeItRunsLeavesNothing) {
  const TemporaryFolder folder;
  expect_failure(run_cli(generate(folder.file("t"), {"--ddr", "1MiB"})), 1, {"not enough memory"});
  EXPECT_FALSE(fs::exists(folder.file("t")));
}

TEST(CliTraceTest, AFolderWithoutATraceIsOneLine) {
  const TemporaryFolder folder;
  expect_failure(run_cli({"trace"}), 2, {"sluice trace DIR"});
  expect_failure(run_cli({"trace", "a", "b"}), 2, {"stray argument"});
  expect_failure(run_cli({"trace", folder.file("none")}), 1,
                 {folder.file("none"), "no such folder"});
  folder.write("file", "x");
  expect_failure(run_cli({"trace", folder.file("file")}), 1, {"it is a file"});
  expect_failure(run_cli({"trace", folder.path().string()}), 1, {"trace.jsonl", "--trace"});
  folder.write("trace.jsonl", "garbage\n");
  expect_failure(run_cli({"trace", folder.path().string()}), 1,
                 {folder.file("trace.jsonl"), "line 1", "record the trace again"});
}

TEST(CliTraceTest, WrongChoicesAreOneLine) {
  const TemporaryFolder folder;
  const std::string trace = folder.file("trace");
  ASSERT_EQ(run_cli(generate(trace)).exit_code, 0);
  expect_failure(run_cli({"trace", trace, "--iterations", "99"}), 1, {"99", "iterations 0 to 11"});
  expect_failure(run_cli({"trace", trace, "--iterations", "x"}), 2, {"--iterations"});
  expect_failure(run_cli({"trace", trace, "--gantt", folder.file("g.pdf")}), 2, {".svg or .png"});
  expect_failure(run_cli({"trace", trace, "--gantt", "/proc/g.svg"}), 1, {"/proc/g.svg"});
  EXPECT_FALSE(fs::exists(folder.file("g.pdf")));
  const std::string svg = folder.file("g.svg");
  expect_failure(run_cli({"trace", trace, "--from-ms", "1"}), 2, {"--from-ms", "--gantt"});
  expect_failure(run_cli({"trace", trace, "--gantt", svg, "--from-ms", "-1"}), 2,
                 {"--from-ms -1", "from 0"});
  expect_failure(run_cli({"trace", trace, "--gantt", svg, "--to-ms", "nan"}), 2, {"--to-ms nan"});
  expect_failure(run_cli({"trace", trace, "--gantt", svg, "--from-ms", "2", "--to-ms", "2"}), 2,
                 {"--to-ms 2", "more than --from-ms"});
  expect_failure(run_cli({"trace", trace, "--gantt", svg, "--from-ms", "1e6"}), 1,
                 {"iteration 6 takes", "at 1000 s"});
  EXPECT_FALSE(fs::exists(svg));
}

TEST(CliTraceTest, ADiskThatIsFullIsOneLineAndLeavesNothing) {
  const TemporaryFolder folder;
  for (const rlim_t room : {20000, 90000}) {  // for less than the record, and than its files
    SCOPED_TRACE(room);
    const test::SmallDisk disk(room);
    const CliResult result = run_cli(generate(folder.file("t")));
    EXPECT_EQ(result.exit_code, 1);
    ASSERT_EQ(testing::lines_of(result.err).size(), 1U) << result.err;
    EXPECT_TRUE(result.err.starts_with("sluice: ")) << result.err;
    EXPECT_NE(result.err.find(folder.file("t")), std::string::npos) << result.err;
    EXPECT_FALSE(fs::exists(folder.file("t")));
  }
}

TEST(CliTraceTest, AReaderThatGoesAwayLeavesTheTrace) {
  const TemporaryFolder folder;
  const std::string trace = folder.file("trace");
  std::string command = "set -o pipefail; '" + testing::sluice_program() + "'";
  for (const std::string& word : generate(trace)) command += " '" + word + "'";
  CliProcess process("/usr/bin/env", {"bash", "-c", command + " | true"});
  const CliResult result = process.wait();
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("cannot write to standard output"), std::string::npos) << result.err;
  EXPECT_EQ(files_in(trace), all_files);
}

TEST(CliTraceTest, AnInterruptedRunLeavesWhatItDid) {
  const TemporaryFolder folder;
  const std::string prompts = folder.file("prompts");
  std::string text;
  for (int i = 0; i < 2000; ++i) text += "{\"prompt\":\"Once upon a time\"}\n";
  folder.write("prompts", text);
  CliProcess generating({"generate", "--prompts", prompts, "--batch", "1", "--max-tokens", "60",
                         "--ignore-eos", "-q", "--policy", "cpu-only", "--trace",
                         folder.file("generate")});
  testing::wait_for_lines(generating.output_path(), 2);
  generating.send(SIGINT);
  EXPECT_EQ(generating.wait().exit_code, 130);
  EXPECT_EQ(files_in(folder.file("generate")), all_files);
  EXPECT_GT(read_trace(folder.file("generate")).at("tasks"), 2 * 60 * 4);
}

TEST(CliTraceTest, ABufferThatCannotBeIsRefusedBeforeTheRun) {
  const TemporaryFolder folder;
  for (const char* size : {"0", "-1", "1x", "99999999999"}) {
    const std::string trace = folder.file("trace");
    const CliResult result =
        CliProcess("/usr/bin/env",
                   {fmt::format("STARPU_TRACE_BUFFER_SIZE={}", size), testing::sluice_program(),
                    "generate", "--prompt", "Once", "--max-tokens", "2", "--trace", trace})
            .wait();
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_EQ(result.out, "");
    EXPECT_NE(result.err.find(fmt::format("STARPU_TRACE_BUFFER_SIZE={}: expected whole MiB", size)),
              std::string::npos)
        << result.err;
    EXPECT_FALSE(fs::exists(trace));
  }
}

TEST(CliTraceTest, AnInterruptedBenchLeavesWhatItDidAndSaysThatTheBufferWasFull) {
  const TemporaryFolder folder;
  const std::string trace = folder.file("bench");
  CliProcess bench("/usr/bin/env", {"STARPU_TRACE_BUFFER_SIZE=1", testing::sluice_program(),
                                    "bench", "--prompt-tokens", "0", "--gen-tokens", "256",
                                    "--repeat", "1000", "--policy", "cpu-only", "--trace", trace});
  const auto recorded = [&] {  // what has left the buffer
    std::error_code missing;
    const auto size = fs::file_size(trace + "/fxt_0", missing);
    return missing ? 0 : size;
  };
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (recorded() < (1 << 20) && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  bench.send(SIGINT);
  const CliResult result = bench.wait();
  EXPECT_EQ(result.exit_code, 130);
  EXPECT_NE(result.err.find("the trace's buffer was written out"), std::string::npos) << result.err;
  EXPECT_TRUE(result.err.ends_with("\nsluice: interrupted\n")) << result.err;
  EXPECT_EQ(files_in(trace), all_files);
  const json report = read_trace(trace);
  EXPECT_EQ(report.at("lost_tasks"), 0);
  EXPECT_GT(report.at("buffer_flushes"), 0);
  EXPECT_GT(report.at("tasks"), 100);
}

}  // namespace
}  // namespace sluice
