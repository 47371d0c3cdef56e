#pragma once

#include <string>

namespace sluice {

/// Such as "0.1.0".
std::string version_number();
/// The program's name and version, and whether FxT is in it, which decides how it may be passed on:
/// FxT is under the GPL, CUDA's libraries are not free. The line that --version prints.
std::string version_text();

/// Whether this program or its StarPU is linked with FxT.
bool is_linked_with_fxt();
/// The same in words: what it can do, and how it may be passed on.
std::string fxt_text();

}  // namespace sluice
