#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace sluice {

/// A file of the model that the library carries inside itself.
struct EmbeddedFile {
  std::string_view name;
  std::span<const std::byte> bytes;
};

inline constexpr std::string_view kEmbeddedModel = "tiny";

/// The files of models/tiny/model/.
std::span<const EmbeddedFile> embedded_files();

}  // namespace sluice
