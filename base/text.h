#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace sluice {

/// The text with control characters written out ("\n", "\x1b"), so that it can forge no line and
/// move no cursor. Other bytes stay.
std::string printable(std::string_view text);

/// A text of more than `longest` bytes: its first 60, its last 20, and how many it has. Cuts
/// between characters.
std::string shortened(std::string_view text, std::size_t longest = 120);

/// A message for a terminal: one line, control characters written out, very long words and texts
/// shortened, whatever the user wrote into an option, a variable or a file.
std::string one_line(std::string_view message);

}  // namespace sluice
