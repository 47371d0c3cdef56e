#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::jinja {

enum class TokenKind : std::uint8_t {
  data,            ///< text between tags
  variable_begin,  ///< {{
  variable_end,
  block_begin,  ///< {%
  block_end,
  name,
  string,  ///< `text` without quotes and escapes
  integer,
  real,
  symbol,  ///< an operator or bracket
  end,
};

struct Token {
  TokenKind kind;
  std::string text;
  int line;
};

/// Cuts a template into tokens, as Jinja with trim_blocks and lstrip_blocks does: a newline behind
/// a block or comment goes, and so do blanks in front of one on its line. Comments and raw blocks
/// are done with. The last token is `end`. Throws Error, which begins with "line N: ".
std::vector<Token> tokenize(std::string_view source);

}  // namespace sluice::jinja
