#include "engine/requests/prompts.h"

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/nearest_word.h"
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

/// How other programs call what we know: llama.cpp's server, Transformers, and short forms.
constexpr std::array<std::pair<const char*, const char*>, 11> foreign_names = {
    {{"max_length", "max_tokens"},
     {"max_new_tokens", "max_tokens"},
     {"min_new_tokens", "min_tokens"},
     {"n_predict", "max_tokens"},
     {"n_probs", "logprobs"},
     {"num_return_sequences", "n"},
     {"repeat_penalty", "repetition_penalty"},
     {"stop_sequences", "stop"},
     {"stop_strings", "stop"},
     {"temp", "temperature"},
     {"top_logprobs", "logprobs"}}};

/// What a name that is not known was meant to be, or nothing: then it is not ours.
std::string meant_name(const std::string& name, const std::vector<std::string>& known) {
  for (const auto& [foreign, ours] : foreign_names) {
    if (name == foreign) return ours;
  }
  return mistyped_word(name, known);
}

/// Throws FieldError where a name is none of `known`, and was meant to be. A file may run for
/// hours: a mistyped setting that is passed over is seen too late.
void check_names(const nlohmann::ordered_json& object, std::vector<std::string> known) {
  known.insert(known.end(), {"id", "prompt", "prompt_token_ids"});
  for (const auto& [name, value] : object.items()) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    const std::string meant = meant_name(name, known);
    if (!meant.empty())
      throw FieldError(name, "there is no field {}; did you mean \"{}\"?", quote(name), meant);
  }
}

/// Takes off the object what was read of it.
void read_fields(PromptLine& line, json& object, const std::string& place) {
  for (const char* read : {"id", "prompt", "prompt_token_ids"}) object.erase(read);
  if (object.empty()) return;
  const nlohmann::ordered_json rest = object;
  try {
    const Fields fields(rest);
    line.fields = read_request_fields(
        fields, {.vocab_size = std::int64_t{std::numeric_limits<std::int32_t>::max()} + 1});
    line.logprobs = read_logprobs_count(fields, "logprobs");
    check_names(rest, fields.asked());
  } catch (const FieldError& error) {
    throw Error("{}: {}", place, error.what());
  }
}

PromptLine parse_line(std::string_view text, std::int64_t number, const std::string& path) {
  const std::string place = fmt::format("{}, line {}", path, number);
  if (const auto bad = find_invalid_utf8(text)) {
    throw Error("{}: invalid UTF-8 at byte {}; save the file as UTF-8", place, *bad + 1);
  }
  json object = parse_json_line(text, place);
  if (!object.is_object())
    throw Error("{}: expected an object like {{\"prompt\": \"...\"}}", place);
  PromptLine line;
  line.line = number;
  line.id = id_of(object, place, number);
  if (const auto ids = object.find("prompt_token_ids"); ids != object.end()) {
    line.prompt_token_ids = token_ids_of(*ids, place);
    read_fields(line, object, place);
    return line;
  }
  const auto prompt = object.find("prompt");
  if (prompt == object.end() || !prompt->is_string()) {
    throw Error("{}: expected \"prompt\" with a text", place);
  }
  line.prompt = prompt->get<std::string>();
  if (line.prompt.empty()) throw Error("{}: the prompt is empty; give it some text", place);
  read_fields(line, object, place);
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
