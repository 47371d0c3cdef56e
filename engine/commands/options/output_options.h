#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/console/tables.h"
#include "engine/draw/picture.h"

namespace sluice {

class CommandLine;

/// --output-format, --markdown, --csv, --json.
void declare_format(CommandLine& line);
/// What they say. Throws UsageError for an unknown format and for two.
OutputFormat read_format(const CommandLine& line);

/// A word that a list of numbers may have, and what it stands for.
struct NumberWord {
  std::string_view word;
  std::int64_t value = 0;
};

/// "1,8,64" as numbers of [low, high], in the order given, each once. Throws UsageError.
std::vector<std::int64_t> read_list(const CommandLine& line, const std::string& name,
                                    std::int64_t low, std::int64_t high,
                                    const std::optional<NumberWord>& word = std::nullopt);
/// "a,b" as words, in the order given, each once. Throws UsageError for an empty one.
std::vector<std::string> read_words(const CommandLine& line, const std::string& name);

/// By the end of a file's name. Throws UsageError that names `option`.
PictureFormat picture_format(const std::string& option, const std::string& path);

}  // namespace sluice
