#pragma once

#include <functional>
#include <string>

namespace sluice {

/// Reads a whole file ("-": standard input). Throws Error.
std::string read_file(const std::string& path);

/// Tries what write_file will do, while nothing is lost yet. Throws Error.
void check_writable(const std::string& path);

/// Writes a small file as a whole: to a temporary beside it, then renamed. Throws Error.
void write_file(const std::string& path, const std::string& text);
/// The same with a text that comes in parts, until one is empty.
void write_file(const std::string& path, const std::function<std::string()>& next_part);

/// Writes all of `text`; `path` is what errors name. Throws Error.
void write_all(int fd, const std::string& text, const std::string& path);

}  // namespace sluice
