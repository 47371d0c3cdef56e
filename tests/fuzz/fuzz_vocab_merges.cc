// Any bytes as vocab.json and merges.txt, with a NUL between them, and perhaps
// tokenizer_config.json behind another one: refused with an Error of one line, or a tokenizer that
// can be used.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string_view>

#include "base/error.h"
#include "models/files.h"
#include "models/tokenizers/bpe_tokenizer.h"
#include "tests/fuzz/use_tokenizer.h"
#include "tests/support/temporary_folder.h"

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer calls it by this name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const sluice::test::TemporaryFolder folder;
  std::string_view text(reinterpret_cast<const char*>(data), size);
  std::filesystem::remove(folder.file("tokenizer_config.json"));
  for (const char* name : {"vocab.json", "merges.txt", "tokenizer_config.json"}) {
    const bool is_needed = std::string_view(name) != "tokenizer_config.json";
    const std::string_view part = text.substr(0, text.find('\0'));
    text.remove_prefix(std::min(part.size() + 1, text.size()));
    if (is_needed || !part.empty()) folder.write(name, part);
  }
  try {
    const auto files = sluice::ModelFiles::open(folder.path().string());
    sluice::fuzz::use_tokenizer(*sluice::tokenizers::make_tokenizer_from_vocab_and_merges(files));
  } catch (const sluice::Error& error) {
    if (std::string_view(error.what()).find('\n') != std::string_view::npos) std::abort();
  }
  return 0;
}
