#pragma once

#include <string>
#include <vector>

namespace sluice {

/// The word of `known` that is nearest to `given` by edit distance, or nothing when none is near.
std::string nearest_word(const std::string& given, const std::vector<std::string>& known);
/// The word of `known` that `given` is meant to be by all appearance: the same but for capitals,
/// `-` and `_`, or with one letter wrong, missing or too many, in a word of at least 8 letters two;
/// or nothing. For names that may as well be something else.
std::string mistyped_word(const std::string& given, const std::vector<std::string>& known);
/// All of `known`: nearest_word() first, if there is one, the others as in a dictionary, numbers by
/// their size.
std::vector<std::string> nearest_first(const std::string& given, std::vector<std::string> known);

}  // namespace sluice
