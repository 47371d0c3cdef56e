// Any bytes as the --output file of an earlier run that --resume continues: refused with an Error
// of one line and left as it is, or every whole line of it stays.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/files.h"
#include "engine/commands/output_file.h"
#include "tests/support/temporary_folder.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer calls it by this name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const sluice::test::TemporaryFolder folder;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const std::string path = folder.file("out.jsonl");
  folder.write("out.jsonl", text);
  bool is_ours = true;
  try {
    sluice::OutputFile output(path, sluice::OutputFile::Mode::resume);
    const auto num_lines = std::count(text.begin(), text.end(), '\n');
    require(output.finished().size() <= static_cast<std::size_t>(num_lines));
    std::int64_t place = 0;
    for (const auto& [id, prompt] : output.finished()) output.place_finished(id, place++);
    output.put_in_order();
    const std::string kept = sluice::read_file(path);
    require(std::count(kept.begin(), kept.end(), '\n') == num_lines);
  } catch (const sluice::Error& error) {
    require(std::string_view(error.what()).find('\n') == std::string_view::npos);
    is_ours = false;
  }
  require(is_ours || sluice::read_file(path) == text);
  return 0;
}
