#include <fmt/core.h>

#include <charconv>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "engine/commands/options/chat_template_option.h"
#include "engine/commands/options/command_line.h"
#include "engine/commands/subcommands.h"
#include "engine/requests/prompts.h"
#include "models/files.h"
#include "models/tokenizer.h"

namespace sluice {
namespace {

namespace po = boost::program_options;

using TokenIds = std::vector<std::int32_t>;

enum class Direction : std::uint8_t { encode, decode };

void declare_options(CommandLine& line) {
  line.options().add_options()  //
      ("model,m", po::value<std::string>()->default_value("tiny"),
       "folder with a tokenizer's files, or tiny: the embedded model")  //
      ("prompt,p", po::value<std::string>(), "the text")                //
      ("file", po::value<std::string>(),
       "a text a line, or prompts as generate takes them if the name ends with .jsonl; - reads "
       "standard input")  //
      ("chat", po::value<std::string>(),
       "a chat in JSON, a list of messages or an object with \"messages\" and \"tools\", rendered "
       "by the model's chat template; - reads standard input");
  declare_chat_template_option(line,
                               "with --chat: a Jinja file instead of the model's own template");
  line.options().add_options()  //
      ("no-special-tokens", po::bool_switch(),
       "do not add the tokenizer's special tokens to the texts")  //
      ("decode", po::bool_switch(),
       "the other way: each text is a list of ids, with blanks or commas between them, or in "
       "JSON")  //
      ("json", po::bool_switch(), "print one JSON array instead of an object a line");
}

void check_options(const CommandLine& line) {
  int num_inputs = 0;
  for (const char* name : {"prompt", "file", "chat"}) num_inputs += line.given(name) ? 1 : 0;
  if (num_inputs > 1) throw UsageError("--prompt, --file and --chat exclude each other");
  if (num_inputs == 0)
    throw UsageError("nothing to tokenize: give --prompt TEXT, --file FILE or --chat FILE");
  if (line.given("chat-template") && !line.given("chat"))
    throw UsageError("--chat-template needs --chat FILE");
  if (line.given("chat") && line.get<bool>("decode"))
    throw UsageError("--decode needs ids, which --chat does not have");
}

/// One thing to encode or decode, and where it came from.
struct Input {
  std::string place;
  std::string text;
  TokenIds ids;
};

TokenIds parse_json_ids(std::string_view text, const std::string& place) {
  const nlohmann::json list = parse_json(text, place, DuplicateKeys::last_wins);
  TokenIds ids;
  for (const nlohmann::json& item : list) {
    const bool is_id = item.is_number_unsigned() &&
                       item.get<std::uint64_t>() <= std::numeric_limits<std::int32_t>::max();
    if (!is_id) throw Error("{}: {} is no token id", place, describe(item));
    ids.push_back(item.get<std::int32_t>());
  }
  return ids;
}

/// "1, 2 3" or "[1, 2, 3]"; nothing but blanks is no ids at all.
TokenIds parse_ids(std::string_view text, const std::string& place) {
  constexpr std::string_view separators = " \t\r\n,";
  const std::size_t first = text.find_first_not_of(separators);
  if (first != std::string_view::npos && text[first] == '[') return parse_json_ids(text, place);
  TokenIds ids;
  while (true) {
    text.remove_prefix(std::min(text.find_first_not_of(separators), text.size()));
    if (text.empty()) return ids;
    const std::string_view word = text.substr(0, text.find_first_of(separators));
    std::int32_t id = -1;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (error != std::errc() || end != word.data() + word.size() || id < 0)
      throw Error("{}: {} is no token id; expected whole numbers from 0", place, quote(word));
    ids.push_back(id);
    text.remove_prefix(word.size());
  }
}

std::vector<Input> inputs_from_prompts(const std::string& path, Direction direction) {
  std::vector<Input> inputs;
  for (PromptLine& line : read_prompts(path)) {
    Input input{fmt::format("{}, line {}", path, line.line), std::move(line.prompt),
                std::move(line.prompt_token_ids)};
    if (direction == Direction::encode && !input.ids.empty())
      throw Error("{}: \"prompt_token_ids\" are tokens already; --decode gives their text",
                  input.place);
    if (direction == Direction::decode && input.ids.empty())
      throw Error("{}: --decode needs \"prompt_token_ids\"", input.place);
    inputs.push_back(std::move(input));
  }
  return inputs;
}

Input input_from_text(std::string place, std::string_view text, Direction direction) {
  if (const auto bad = find_invalid_utf8(text))
    throw Error("{}: invalid UTF-8 at byte {}; give the text as UTF-8", place, *bad + 1);
  Input input{std::move(place), std::string(text), {}};
  if (direction == Direction::decode) input.ids = parse_ids(text, input.place);
  return input;
}

/// Only the newline at its end is no part of a line.
std::vector<Input> inputs_from_lines(const std::string& path, Direction direction) {
  const std::string content = read_file(path);
  std::string_view rest = content;
  std::vector<Input> inputs;
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    inputs.push_back(input_from_text(fmt::format("{}, line {}", path, inputs.size() + 1),
                                     rest.substr(0, end), direction));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return inputs;
}

Input input_from_chat(const CommandLine& line, const ModelFiles& files) {
  const auto& path = line.get<std::string>("chat");
  const ChatTemplate chat_template = open_chat_template(line, files);
  const Chat chat = parse_chat(read_file(path), path);
  return {path, chat_template.render(chat.messages, chat.options), {}};
}

std::vector<Input> read_inputs(const CommandLine& line, Direction direction,
                               const ModelFiles& files) {
  if (line.given("chat")) return {input_from_chat(line, files)};
  if (line.given("prompt"))
    return {input_from_text("--prompt", line.get<std::string>("prompt"), direction)};
  const std::string& path = line.get<std::string>("file");
  return path.ends_with(".jsonl") ? inputs_from_prompts(path, direction)
                                  : inputs_from_lines(path, direction);
}

std::string decode(const Tokenizer& tokenizer, const TokenIds& ids) {
  Utf8Stream utf8;  // the ids may begin or end inside of a character
  std::string text = utf8.feed(tokenizer.decode(ids));
  return text + utf8.finish();
}

void check_ids(const Tokenizer& tokenizer, const Input& input) {
  for (const std::int32_t id : input.ids) {
    if (id >= tokenizer.vocab_size())
      throw Error("{}: token id {} is outside of the vocabulary, whose highest id is {}",
                  input.place, id, tokenizer.vocab_size() - 1);
  }
}

nlohmann::ordered_json as_json(const Tokenizer& tokenizer, const std::string& text,
                               const TokenIds& ids) {
  auto pieces = nlohmann::ordered_json::array();
  for (const std::int32_t id : ids) pieces.push_back(tokenizer.piece(id));
  return {{"text", text}, {"ids", ids}, {"pieces", std::move(pieces)}};
}

}  // namespace

int run_tokenize(const CommandLine::Arguments& arguments) {
  CommandLine line(
      "sluice tokenize --model DIR (--prompt TEXT | --file FILE | --chat FILE) [options]",
      "Shows the tokens of a text: one JSON object a text with \"text\", \"ids\" and \"pieces\".\n"
      "Needs only the tokenizer's files. --decode leaves special tokens out of the text. A chat's\n"
      "template writes all special tokens itself: none is added.");
  declare_options(line);
  if (!line.parse(arguments)) return 0;
  check_options(line);
  const auto direction = line.get<bool>("decode") ? Direction::decode : Direction::encode;
  const bool adds_no_tokens = line.get<bool>("no-special-tokens") || line.given("chat");
  const auto special =
      adds_no_tokens ? Tokenizer::SpecialTokens::leave_out : Tokenizer::SpecialTokens::add;
  const ModelFiles files = ModelFiles::open(line.get<std::string>("model"));
  const auto tokenizer = open_tokenizer(files);
  std::vector<Input> inputs = read_inputs(line, direction, files);
  if (direction == Direction::decode) {
    for (const Input& input : inputs) check_ids(*tokenizer, input);
  }
  const bool is_array = line.get<bool>("json");
  const char* separator = is_array ? "[\n" : "";
  for (Input& input : inputs) {
    if (direction == Direction::decode) {
      input.text = decode(*tokenizer, input.ids);
    } else {
      input.ids = tokenizer->encode(input.text, special);
    }
    fmt::print("{}{}", separator, json_text(as_json(*tokenizer, input.text, input.ids)));
    separator = is_array ? ",\n" : "\n";
  }
  if (is_array) {
    fmt::print("{}\n", inputs.empty() ? "[]" : "\n]");
  } else if (!inputs.empty()) {
    fmt::print("\n");
  }
  return 0;
}

}  // namespace sluice
