#include "engine/commands/output_file.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/files.h"
#include "tests/support/expect_error.h"
#include "tests/support/small_disk.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

using test::SmallDisk;
using test::TemporaryFolder;
using testing::expect_error;
using Mode = OutputFile::Mode;

FinishedRequest completion(std::int64_t index, const std::string& text = "text") {
  Completion done;
  Request request;
  request.index = index;
  request.id = "id-" + std::to_string(index);
  request.prompt = "prompt " + std::to_string(index);
  done.request = std::make_shared<const Request>(std::move(request));
  done.text = text;
  done.token_ids = {1, 2};
  done.finish_reason = FinishReason::length;
  return {.outputs = {{.completion = std::move(done), .logprobs = {}}}};
}

std::string lines_of(std::initializer_list<std::int64_t> indices) {
  std::string text;
  for (const std::int64_t index : indices) text += completion_line(completion(index)) + "\n";
  return text;
}

std::size_t num_entries(const TemporaryFolder& folder) {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(folder.path()),
                                                std::filesystem::directory_iterator()));
}

class OutputFileTest : public ::testing::Test {
 protected:
  std::string content() const { return read_file(path); }

  TemporaryFolder folder;
  const std::string path = folder.file("out.jsonl");
};

TEST_F(OutputFileTest, LineHasTheFields) {
  const auto line = nlohmann::json::parse(completion_line(completion(3, "a\nb")));
  EXPECT_EQ(line, (nlohmann::json{{"id", "id-3"},
                                  {"prompt", "prompt 3"},
                                  {"text", "a\nb"},
                                  {"token_ids", {1, 2}},
                                  {"finish_reason", "length"}}));
  EXPECT_EQ(completion_line(completion(3, "a\nb")).find('\n'), std::string::npos);
}

TEST_F(OutputFileTest, LineHasLogprobsAndOtherOutputsWhereTheyAreAskedFor) {
  FinishedRequest done = completion(3);
  Request request = done.request();
  request.logprobs = 2;
  request.num_outputs = 2;
  FinishedRequest::Output& first = done.outputs.front();
  first.completion.request = std::make_shared<const Request>(request);
  first.logprobs = {{{1, -0.5F}, {{1, -0.5F}, {4, -2}}},
                    {{2, -std::numeric_limits<float>::infinity()}, {{9, 0}}}};
  done.outputs.push_back(first);
  done.outputs.back().completion.text = "other";
  const auto line = nlohmann::json::parse(completion_line(done));
  const nlohmann::json logprobs = {{"token_logprobs", {-0.5, -9999.0}},
                                   {"top_logprobs", {{{"1", -0.5}, {"4", -2.0}}, {{"9", 0.0}}}}};
  EXPECT_EQ(line, (nlohmann::json{{"id", "id-3"},
                                  {"prompt", "prompt 3"},
                                  {"text", "text"},
                                  {"token_ids", {1, 2}},
                                  {"finish_reason", "length"},
                                  {"logprobs", logprobs},
                                  {"other_outputs", nlohmann::json::array({{
                                                        {"text", "other"},
                                                        {"token_ids", {1, 2}},
                                                        {"finish_reason", "length"},
                                                        {"logprobs", logprobs},
                                                    }})}}));
  folder.write("out.jsonl", completion_line(done) + "\n");
  EXPECT_EQ(OutputFile(path, Mode::resume).finished().size(), 1U);
}

TEST_F(OutputFileTest, LineIsThereAsSoonAsItIsAdded) {
  OutputFile output(path, Mode::create);
  output.add(completion(0));
  EXPECT_EQ(content(), lines_of({0}));
  output.add(completion(1));
  EXPECT_EQ(content(), lines_of({0, 1}));
}

TEST_F(OutputFileTest, LinesArePutIntoInputOrder) {
  OutputFile output(path, Mode::create);
  for (const std::int64_t index : {2, 0, 1}) output.add(completion(index));
  EXPECT_EQ(content(), lines_of({2, 0, 1}));
  output.put_in_order();
  EXPECT_EQ(content(), lines_of({0, 1, 2}));
  EXPECT_EQ(num_entries(folder), 1U);
}

TEST_F(OutputFileTest, SortingKeepsTheLinkAndTheMode) {
  namespace fs = std::filesystem;
  const fs::path file = folder.path() / "real.jsonl";
  folder.write("real.jsonl", "");
  fs::permissions(file, fs::perms::owner_read | fs::perms::owner_write);
  fs::create_symlink("real.jsonl", path);
  OutputFile output(path, Mode::overwrite);
  for (const std::int64_t index : {2, 0, 1}) output.add(completion(index));
  output.put_in_order();
  EXPECT_TRUE(fs::is_symlink(path));
  EXPECT_EQ(read_file(file.string()), lines_of({0, 1, 2}));
  EXPECT_EQ(fs::status(file).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_EQ(num_entries(folder), 2U);
}

/// Without a tokenizer a prompt is its tokens.
TEST_F(OutputFileTest, PromptsWithoutTextAreTheirTokens) {
  FinishedRequest done = completion(0);
  Request tokens = done.request();
  tokens.prompt = "";
  tokens.prompt_tokens = {7, 8};
  done.outputs.front().completion.request = std::make_shared<const Request>(tokens);
  const auto line = nlohmann::json::parse(completion_line(done));
  EXPECT_EQ(line["prompt_token_ids"], (nlohmann::json{7, 8}));
  folder.write("out.jsonl", completion_line(done) + "\n" + completion_line(completion(1)) + "\n");
  const OutputFile output(path, Mode::resume);
  EXPECT_EQ(output.finished(), (std::map<std::string, std::string>{
                                   {"id-0", prompt_identity(tokens)}, {"id-1", "prompt 1"}}));
  Request other = tokens;
  other.prompt_tokens = {7, 9};
  EXPECT_NE(prompt_identity(other), prompt_identity(tokens));
}

TEST_F(OutputFileTest, NothingStaysWhenNothingWasFinished) {
  {
    OutputFile output(path, Mode::create);
    output.put_in_order();
  }
  EXPECT_EQ(num_entries(folder), 0U);
}

TEST_F(OutputFileTest, ExistingFileIsNotTouchedByDefault) {
  folder.write("out.jsonl", "precious");
  expect_error([&] { OutputFile(path, Mode::create); },
               {path, "exists", "--resume", "--overwrite"});
  EXPECT_EQ(content(), "precious");
}

TEST_F(OutputFileTest, OverwriteKeepsTheOldContentUntilTheFirstLine) {
  folder.write("out.jsonl", "old and much longer than the line that comes instead of it\n" +
                                std::string(1000, 'x'));
  const std::string before = content();
  { const OutputFile unused(path, Mode::overwrite); }
  EXPECT_EQ(content(), before);
  OutputFile output(path, Mode::overwrite);
  output.add(completion(0));
  EXPECT_EQ(content(), lines_of({0}));
}

TEST_F(OutputFileTest, ResumeKeepsFinishedLines) {
  folder.write("out.jsonl", lines_of({3, 1}));
  OutputFile output(path, Mode::resume);
  EXPECT_EQ(output.finished(),
            (std::map<std::string, std::string>{{"id-1", "prompt 1"}, {"id-3", "prompt 3"}}));
  output.place_finished("id-1", 1);
  output.place_finished("id-3", 3);
  output.add(completion(2));
  output.add(completion(0));
  output.put_in_order();
  EXPECT_EQ(content(), lines_of({0, 1, 2, 3}));
}

TEST_F(OutputFileTest, ResumeWithoutAFileStartsOne) {
  OutputFile output(path, Mode::resume);
  EXPECT_TRUE(output.finished().empty());
  output.add(completion(0));
  EXPECT_EQ(content(), lines_of({0}));
}

TEST_F(OutputFileTest, ResumeDropsALineThatWasCutOff) {
  const std::string whole = lines_of({0, 1});
  for (const std::size_t length : {whole.size() - 1, whole.size() - 20, lines_of({0}).size() + 1}) {
    folder.write("out.jsonl", whole.substr(0, length));
    OutputFile output(path, Mode::resume);
    EXPECT_EQ(output.finished().size(), 1U);
    output.place_finished("id-0", 0);
    output.put_in_order();
    EXPECT_EQ(content(), lines_of({0})) << length;
    output.add(completion(1));
    EXPECT_EQ(content(), whole) << length;
  }
}

TEST_F(OutputFileTest, ResumeOfACutOffFirstLineStartsAnew) {
  folder.write("out.jsonl", lines_of({0}).substr(0, 30));
  OutputFile output(path, Mode::resume);
  EXPECT_TRUE(output.finished().empty());
  output.add(completion(0));
  EXPECT_EQ(content(), lines_of({0}));
}

TEST_F(OutputFileTest, ResumeRefusesForeignFiles) {
  for (const std::string& foreign :
       {std::string("some notes\n"), std::string("one line of notes without an end"),
        std::string("{\"id\": 3, \"prompt\": \"a\"}\n"), std::string("{\"id\": \"a\"}\n"),
        std::string("{\"id\": \"3\", \"prompt\": \"of a file of prompts\"}\n"), std::string("[]\n"),
        std::string("\n"), lines_of({0}) + "notes"}) {
    folder.write("out.jsonl", foreign);
    expect_error([&] { OutputFile(path, Mode::resume); }, {path, "line ", "--resume"});
    EXPECT_EQ(content(), foreign);
  }
  folder.write("out.jsonl", lines_of({0, 1}) + "notes\n" + lines_of({2}));
  expect_error([&] { OutputFile(path, Mode::resume); }, {path, "line 3"});
}

TEST_F(OutputFileTest, SecondWriterIsRefused) {
  OutputFile first(path, Mode::create);
  first.add(completion(0));
  for (const Mode mode : {Mode::resume, Mode::overwrite}) {
    expect_error([&] { OutputFile(path, mode); }, {path, "another run"});
  }
  expect_error([&] { OutputFile(path, Mode::create); }, {path, "exists"});
  first.add(completion(1));
  EXPECT_EQ(content(), lines_of({0, 1}));
}

TEST_F(OutputFileTest, UnwritablePathsAreRefused) {
  expect_error([&] { OutputFile(folder.path().string(), Mode::create); },
               {"cannot write", "folder"});
  expect_error([&] { OutputFile(folder.file("none/out.jsonl"), Mode::create); },
               {"cannot write", "No such file"});
  expect_error([&] { OutputFile("/proc/out.jsonl", Mode::create); }, {"cannot write /proc"});
  std::filesystem::create_symlink("/dev/full", folder.file("full"));
  expect_error([&] { OutputFile(folder.file("full"), Mode::overwrite); },
               {"cannot write", "regular file"});
}

TEST_F(OutputFileTest, FullDiskLeavesWholeLines) {
  OutputFile output(path, Mode::create);
  {
    const SmallDisk disk(lines_of({0, 1}).size() + 30);
    output.add(completion(0));
    output.add(completion(1));
    expect_error([&] { output.add(completion(2)); }, {"cannot write", path, "File too large"});
  }
  EXPECT_EQ(content(), lines_of({0, 1}));
  output.add(completion(2));
  EXPECT_EQ(content(), lines_of({0, 1, 2}));
}

TEST_F(OutputFileTest, FullDiskAtTheFirstLineLeavesNothing) {
  {
    const SmallDisk disk(10);
    OutputFile output(path, Mode::create);
    expect_error([&] { output.add(completion(0)); }, {"cannot write", path});
  }
  EXPECT_EQ(num_entries(folder), 0U);
}

TEST_F(OutputFileTest, FullDiskWhilePuttingInOrderLeavesTheLines) {
  OutputFile output(path, Mode::create);
  for (const std::int64_t index : {1, 0}) output.add(completion(index));
  {
    const SmallDisk disk(20);
    expect_error([&] { output.put_in_order(); }, {"cannot write", path});
  }
  EXPECT_EQ(content(), lines_of({1, 0}));
  EXPECT_EQ(num_entries(folder), 1U);
}

// A run may write for weeks: lines are on disk, and only their places are kept.
TEST_F(OutputFileTest, KeepsNoLinesInMemory) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's allocator does not count";
#endif
  const auto allocated_bytes = [] {
    const struct mallinfo2 info = mallinfo2();
    return static_cast<std::int64_t>(info.uordblks + info.hblkhd);
  };
  constexpr std::int64_t num_lines = 5000;
  OutputFile output(path, Mode::create);
  const std::int64_t before = allocated_bytes();
  for (std::int64_t i = 0; i < num_lines; ++i)
    output.add(completion(num_lines - i, std::string(400, 'x')));
  const std::int64_t after = allocated_bytes();
  EXPECT_LT(after - before, 64 * num_lines);
  output.put_in_order();
  const std::string text = content();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), num_lines);
  EXPECT_EQ(text.substr(0, text.find('\n')), completion_line(completion(1, std::string(400, 'x'))));
}

}  // namespace
}  // namespace sluice
