// Any bytes as model.safetensors.index.json, beside two whole shards: refused with an Error of one
// line, or every tensor that it names can be read.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.h"
#include "models/checkpoint.h"
#include "models/files.h"
#include "tests/support/temporary_folder.h"

namespace {

/// A safetensors file with one tensor of two floats.
std::string shard(const std::string& tensor) {
  const std::string header =
      "{\"" + tensor + R"(":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  std::string bytes(8, '\0');
  bytes[0] = static_cast<char>(header.size());
  return bytes + header + std::string(8, '\0');
}

const sluice::test::TemporaryFolder& folder_of_shards() {
  static const sluice::test::TemporaryFolder folder;
  static const bool written = [] {
    folder.write("a.safetensors", shard("model.norm.weight"));
    folder.write("b.safetensors", shard("lm_head.weight"));
    return true;
  }();
  static_cast<void>(written);
  return folder;
}

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer calls it by this name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto& folder = folder_of_shards();
  folder.write("model.safetensors.index.json",
               std::string_view(reinterpret_cast<const char*>(data), size));
  try {
    const auto checkpoint =
        sluice::Checkpoint::open(sluice::ModelFiles::open(folder.path().string()));
    for (const char* name : {"model.norm.weight", "norm.weight", "lm_head.weight"}) {
      const auto view = checkpoint.find(name);
      if (view && view->data.size() != 8) std::abort();
    }
  } catch (const sluice::Error& error) {
    const std::string_view message = error.what();
    if (message.find('\n') != std::string_view::npos || message.size() > 2000) std::abort();
  }
  return 0;
}
