#include "engine/prompts.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "models/tokenizer.h"

namespace sluice {
namespace {

using nlohmann::json;

/// Ids stand in every output line, in traces and in messages.
constexpr std::size_t most_id_bytes = 4096;

std::string id_of(const json& object, const std::string& place, std::int64_t line) {
  const auto found = object.find("id");
  if (found == object.end()) return std::to_string(line);
  if (const auto* id = found->get_ptr<const std::string*>()) {
    if (id->size() > most_id_bytes) {
      throw Error("{}: \"id\" has {} bytes, expected at most {}; give it a shorter one", place,
                  id->size(), most_id_bytes);
    }
    return *id;
  }
  if (found->is_number_integer()) return json_text(*found);
  throw Error("{}: \"id\" must be text or a whole number, found {}", place, found->type_name());
}

std::vector<std::int32_t> token_ids_of(const json& value, const std::string& place) {
  if (!value.is_array() || value.empty()) {
    throw Error("{}: \"prompt_token_ids\" must be a list of token ids, not empty", place);
  }
  std::vector<std::int32_t> ids;
  for (const json& item : value) {
    const bool fits = item.is_number_integer() &&
                      (!item.is_number_unsigned() ||
                       item.get<std::uint64_t>() <= std::numeric_limits<std::int32_t>::max()) &&
                      item.get<std::int64_t>() >= 0;
    if (!fits)
      throw Error("{}: \"prompt_token_ids\" has {}, which is no token id", place, describe(item));
    ids.push_back(item.get<std::int32_t>());
  }
  return ids;
}

json parse_object(std::string_view text, const std::string& place) {
  try {
    return parse_json(text, place, DuplicateKeys::last_wins);
  } catch (const Error& error) {
    std::string message = error.what();
    const std::string_view redundant = " at line 1, column";  // `place` names the line
    if (const auto found = message.find(redundant); found != std::string::npos) {
      message.replace(found, redundant.size(), " at column");
    }
    throw Error("{}", message);
  }
}

PromptLine parse_line(std::string_view text, std::int64_t number, const std::string& path) {
  const std::string place = fmt::format("{}, line {}", path, number);
  if (const auto bad = find_invalid_utf8(text)) {
    throw Error("{}: invalid UTF-8 at byte {}; save the file as UTF-8", place, *bad + 1);
  }
  const json object = parse_object(text, place);
  if (!object.is_object())
    throw Error("{}: expected an object like {{\"prompt\": \"...\"}}", place);
  PromptLine line{
      .line = number, .id = id_of(object, place, number), .prompt = {}, .prompt_token_ids = {}};
  if (const auto ids = object.find("prompt_token_ids"); ids != object.end()) {
    line.prompt_token_ids = token_ids_of(*ids, place);
    return line;
  }
  const auto prompt = object.find("prompt");
  if (prompt == object.end() || !prompt->is_string()) {
    throw Error("{}: expected \"prompt\" with a text", place);
  }
  line.prompt = prompt->get<std::string>();
  if (line.prompt.empty()) throw Error("{}: the prompt is empty; give it some text", place);
  return line;
}

}  // namespace

std::vector<PromptLine> parse_prompts(std::string_view text, const std::string& path) {
  std::vector<PromptLine> prompts;
  std::unordered_map<std::string, std::int64_t> seen;
  std::int64_t number = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    prompts.push_back(parse_line(line, number, path));
    const auto [first, is_new] = seen.emplace(prompts.back().id, number);
    if (!is_new) {
      throw Error("{}, line {}: the id {} was used in line {}; ids must differ", path, number,
                  quote(prompts.back().id), first->second);
    }
  }
  if (prompts.empty())
    throw Error("{}: no prompts in it; expected lines like {{\"prompt\": \"...\"}}", path);
  return prompts;
}

std::vector<PromptLine> read_prompts(const std::string& path) {
  return parse_prompts(read_file(path), path);
}

}  // namespace sluice
