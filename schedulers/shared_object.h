#pragma once

#include <filesystem>
#include <string>

namespace sluice {

/// What is wrong with a file that is to be loaded, in a few words; empty when nothing is. Looked at
/// are its ELF header, its program headers and its dynamic section, which the dynamic linker
/// trusts: each must lie where it says, within the file. What is no ELF file at all passes:
/// dlopen() refuses it without harm. A file without section headers is fine.
std::string shared_object_problem(const std::filesystem::path& file);

}  // namespace sluice
