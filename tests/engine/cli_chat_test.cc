// `sluice chat`, seen from outside: what is typed, and what is answered.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/engine/serve/serving.h"
#include "tests/support/cli_process.h"

namespace sluice {
namespace {

using nlohmann::json;
using testing::Arguments;
using testing::CliProcess;
using testing::CliResult;
using testing::expect_failure;
using testing::lines_of;
using testing::operator+;
using testing::Serving;

constexpr const char* chat_template =
    "{% for message in messages %}{{ message.role }}: {{ message.content | trim }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}";

class CliChatTest : public ::testing::Test {
 protected:
  CliChatTest() { folder.write("chat.jinja", chat_template); }

  Arguments words(const Arguments& more) const {
    return Arguments{"chat", "--dtype", "f32", "--chat-template", folder.file("chat.jinja")} + more;
  }
  /// With this as its standard input.
  CliResult chat(const std::string& input, const Arguments& more = {}) const {
    folder.write("input", input);
    return through_shell("< '" + folder.file("input") + "'", words(more)).wait();
  }
  /// The shell becomes the program, so that signals reach it.
  static CliProcess through_shell(const std::string& redirections, const Arguments& words) {
    return CliProcess(
        "/bin/sh",
        Arguments{"-c", "exec \"$0\" \"$@\" " + redirections, testing::sluice_program()} + words);
  }

  test::TemporaryFolder folder;
};

/// What the server answers to the messages, and these with the answer behind them.
std::string served(const Serving& server, json& messages, const std::string& text, int tokens) {
  messages.push_back({{"role", "user"}, {"content", text}});
  const json answer = server.post(
      "/v1/chat/completions", {{"messages", messages}, {"max_tokens", tokens}, {"temperature", 0}});
  messages.push_back(answer["choices"][0]["message"]);
  return answer["choices"][0]["message"]["content"];
}

TEST_F(CliChatTest, AnswersWhatTheServerAnswersToTheWholeConversation) {
  const CliResult result =
      chat("Once upon a time there was a dog.\n\nWhat did it do?\r\n/reset\nThe sun was hot\n",
           {"--system", "You tell stories.", "--temperature", "0", "--max-tokens", "24"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  Serving server({"--chat-template", folder.file("chat.jinja")});
  const json beginning = {{{"role", "system"}, {"content", "You tell stories."}}};
  json messages = beginning;
  std::string expected = served(server, messages, "Once upon a time there was a dog.", 24) + "\n";
  expected += served(server, messages, "What did it do?", 24) + "\n";
  messages = beginning;
  expected += served(server, messages, "The sun was hot", 24) + "\n";
  EXPECT_EQ(result.out, expected);
  EXPECT_EQ(server.stop().exit_code, 0);
}

TEST_F(CliChatTest, HistoryIsNotComputedAnew) {
  std::string story = "Listen.";
  for (int i = 0; i < 15; ++i) story += " The dog saw a cat in the garden.";
  const CliResult result = chat(story + "\nAnd then?\n", {"--max-tokens", "4"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const std::string last = lines_of(result.err).back();
  std::smatch found;
  ASSERT_TRUE(std::regex_search(
      last, found, std::regex("prompts: ([0-9]+) tokens, ([0-9]+) of them computed before")))
      << last;
  // The first message is in both prompts, and the second prompt adds little.
  EXPECT_GT(3 * std::stoi(found[2]), std::stoi(found[1])) << last;
}

TEST_F(CliChatTest, QuitEndsItAndTheSeedReproducesIt) {
  const Arguments sampled = {"--temperature", "0.9", "--seed", "7", "-n", "12", "-q"};
  const CliResult result = chat("Hello\n/quit\nNobody hears this\n", sampled);
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err, "");
  EXPECT_EQ(chat("Hello", sampled).out, result.out) << "a line may end with the input";
}

TEST_F(CliChatTest, WhatCannotBeAnsweredIsSaidAndForgotten) {
  const Arguments options = {"-q", "--temperature", "0", "-n", "8", "--max-model-len", "80"};
  const std::string long_text(400, 'x');
  const CliResult result = chat("/what\n" + long_text + "\n\xFF\nHello\n", options);
  EXPECT_EQ(result.exit_code, 0);
  const std::vector<std::string> said = lines_of(result.err);
  ASSERT_EQ(said.size(), 3U) << result.err;
  EXPECT_NE(said[0].find("there is no /what"), std::string::npos);
  EXPECT_NE(said[1].find("the context is 80"), std::string::npos);
  EXPECT_NE(said[2].find("invalid UTF-8 at byte 1"), std::string::npos);
  EXPECT_EQ(result.out, chat("Hello\n", options).out);
}

TEST_F(CliChatTest, WhereTheContextEndsAnAnswerItIsSaid) {
  const CliResult result = chat("Hello\n", {"-q", "--temperature", "0", "--max-model-len", "40"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_NE(result.err.find("the context of 40 tokens is full"), std::string::npos) << result.err;
}

TEST_F(CliChatTest, WrongCallsAreOneLine) {
  expect_failure(testing::run_cli({"chat"}), 1, {"no chat template", "--chat-template FILE"});
  expect_failure(testing::run_cli(words({"--max-model-len", "100000"})), 2,
                 {"--max-model-len 100000", "positions"});
  expect_failure(testing::run_cli(words({"--system", "\xFF"})), 2, {"--system", "UTF-8"});
  folder.write("chat.jinja", "{{ raise_exception('no system') }}");
  const CliResult refused = chat("Hello\n", {"-q"});
  EXPECT_EQ(refused.exit_code, 0);
  EXPECT_NE(refused.err.find("no system"), std::string::npos) << refused.err;
}

/// A pipe by name, both of whose ends are open here.
class NamedPipe {
 public:
  explicit NamedPipe(std::string path) : path_(std::move(path)) {
    EXPECT_EQ(mkfifo(path_.c_str(), 0600), 0);
    file_ = open(path_.c_str(), O_RDWR | O_CLOEXEC);
    EXPECT_GE(file_, 0);
  }
  ~NamedPipe() { close(file_); }
  NamedPipe(const NamedPipe&) = delete;
  NamedPipe& operator=(const NamedPipe&) = delete;

  const std::string& path() const { return path_; }
  void put(const std::string& text) const {
    EXPECT_EQ(write(file_, text.data(), text.size()), std::ssize(text));
  }
  std::string take() const {
    std::string text(static_cast<std::size_t>(size()), '\0');
    EXPECT_EQ(read(file_, text.data(), text.size()), std::ssize(text));
    return text;
  }
  int size() const {
    int bytes = 0;
    ioctl(file_, FIONREAD, &bytes);
    return bytes;
  }
  void wait_for_more_than(int bytes) const {
    for (int i = 0; i < 30000 && size() <= bytes; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    EXPECT_GT(size(), bytes);
  }
  /// Leaves so many bytes of room: whoever writes more waits for a reader.
  void fill_up_to(int room) const {
    constexpr int page = 4096;
    EXPECT_EQ(fcntl(file_, F_SETPIPE_SZ, page), page);
    put(std::string(static_cast<std::size_t>(page - room), '.'));
  }

 private:
  std::string path_;
  int file_ = -1;
};

/// The answer cannot end by itself ahead of the signal: nobody reads it.
TEST_F(CliChatTest, CtrlCEndsTheAnswerAndTheConversationGoesOn) {
  const Arguments options = {"--temperature", "0", "-q"};
  const std::string whole = chat("Tell me all\n", options).out;
  ASSERT_GT(whole.size(), 100U);
  const NamedPipe in(folder.file("in"));
  const NamedPipe out(folder.file("out"));
  constexpr int room = 12;
  out.fill_up_to(room);
  CliProcess process =
      through_shell("< '" + in.path() + "' > '" + out.path() + "'", words(options));
  in.put("Tell me all\n");
  out.wait_for_more_than(4096 - room);
  // A piece that fills the pipe waits: a signal may not lose it.
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  process.send(SIGINT);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  std::string cut = out.take().substr(4096 - room);
  in.put("/quit\n");
  const CliResult result = process.wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  if (out.size() > 0) cut += out.take();
  EXPECT_EQ(cut.back(), '\n');
  cut.pop_back();
  EXPECT_LT(cut.size() + 1, whole.size());
  EXPECT_TRUE(whole.starts_with(cut)) << cut;
}

TEST_F(CliChatTest, CtrlCAheadOfAMessageEndsIt) {
  const NamedPipe in(folder.file("in"));
  CliProcess process = through_shell("< '" + in.path() + "'", words({"-n", "4"}));
  testing::wait_for_lines(process.error_path(), 1);  // it waits for a message, or is about to
  process.send(SIGINT);
  const CliResult result = process.wait();
  EXPECT_EQ(result.exit_code, 130);
  EXPECT_EQ(result.out, "");
}

TEST_F(CliChatTest, CtrlCEndsTheWaitForPrompts) {
  const NamedPipe in(folder.file("in"));
  CliProcess process =
      through_shell("< '" + in.path() + "'", {"generate", "--prompts", "-", "-n", "4"});
  in.put("{\"prompt\": \"Once\"}\n");
  for (int i = 0; i < 30000 && in.size() > 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // and it waits for more
  process.send(SIGINT);
  const CliResult result = process.wait();
  EXPECT_EQ(result.exit_code, 130) << result.err;
  EXPECT_EQ(result.out, "");
}

}  // namespace
}  // namespace sluice
