#include "engine/commands/options/output_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/error.h"
#include "engine/commands/options/command_line.h"

namespace sluice {

namespace po = boost::program_options;

namespace {

/// "a,,b" as "a", "" and "b".
std::vector<std::string> split_list(const std::string& text) {
  std::vector<std::string> items;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    items.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return items;
}

}  // namespace

void declare_format(CommandLine& line) {
  line.options().add_options()  //
      ("output-format", po::value<std::string>()->default_value("table"),
       "table, markdown, csv or json")                                         //
      ("markdown", po::bool_switch(), "the same as --output-format markdown")  //
      ("csv", po::bool_switch(), "the same as --output-format csv")            //
      ("json", po::bool_switch(), "the same as --output-format json");
}

std::vector<std::int64_t> read_list(const CommandLine& line, const std::string& name,
                                    std::int64_t low, std::int64_t high,
                                    const std::optional<NumberWord>& word) {
  const std::string& text = line.get<std::string>(name);
  std::vector<std::int64_t> values;
  for (const std::string& item : split_list(text)) {
    std::int64_t value = 0;
    const char* const end = item.data() + item.size();
    const auto [read_to, error] = std::from_chars(item.data(), end, value);
    const bool number = error == std::errc() && read_to == end && value >= low && value <= high;
    if (!number && (!word || item != word->word)) {
      throw UsageError("--{} {}: expected whole numbers from {} to {}, like 1,8,64{}", name, text,
                       low, high, word ? fmt::format(", or {}", word->word) : "");
    }
    if (!number) value = word->value;
    if (std::find(values.begin(), values.end(), value) == values.end()) values.push_back(value);
  }
  return values;
}

OutputFormat read_format(const CommandLine& line) {
  static const std::vector<std::pair<std::string, OutputFormat>> formats = {
      {"table", OutputFormat::table},
      {"markdown", OutputFormat::markdown},
      {"csv", OutputFormat::csv},
      {"json", OutputFormat::json}};
  std::vector<OutputFormat> asked;
  if (line.given("output-format")) {
    const std::string& name = line.get<std::string>("output-format");
    const auto found = std::find_if(formats.begin(), formats.end(),
                                    [&](const auto& format) { return format.first == name; });
    if (found == formats.end()) {
      throw UsageError("--output-format {}: expected table, markdown, csv or json", name);
    }
    asked.push_back(found->second);
  }
  for (const auto& [name, format] : formats) {
    if (format != OutputFormat::table && line.get<bool>(name)) asked.push_back(format);
  }
  if (asked.size() > 1) {
    throw UsageError("one of --output-format, --markdown, --csv and --json is enough");
  }
  return asked.empty() ? OutputFormat::table : asked.front();
}

PictureFormat picture_format(const std::string& option, const std::string& path) {
  if (path.ends_with(".svg")) return PictureFormat::svg;
  if (path.ends_with(".png")) return PictureFormat::png;
  throw UsageError("--{} {}: expected a file that ends in .svg or .png", option, path);
}

std::vector<std::string> read_words(const CommandLine& line, const std::string& name) {
  const std::string& text = line.get<std::string>(name);
  std::vector<std::string> words;
  for (std::string& word : split_list(text)) {
    if (word.empty()) throw UsageError("--{} {}: expected names, like a,b", name, text);
    if (std::find(words.begin(), words.end(), word) == words.end())
      words.push_back(std::move(word));
  }
  return words;
}

}  // namespace sluice
