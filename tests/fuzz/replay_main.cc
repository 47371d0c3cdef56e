// Gives every file of the folders named on the command line to a fuzz target, once, and lists and
// objects that are nested 100,000 times. It needs no fuzzing engine, so that the corpora are
// replayed by any compiler.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer calls it by this name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

void replay(const std::string& bytes) {
  std::vector<std::uint8_t> exact(bytes.begin(), bytes.end());
  exact.shrink_to_fit();  // so that a read past the end is one past the allocation
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
}

void replay_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  replay({std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()});
}

/// What reads JSON may call itself for each level. Closed, too, so that it is parsed to its end.
void replay_nested(const std::string& open, const std::string& close) {
  constexpr int num_levels = 100'000;
  std::string bytes;
  for (int i = 0; i < num_levels; ++i) bytes += open;
  bytes += "1";
  for (int i = 0; i < num_levels; ++i) bytes += close;
  std::printf("%d times %s\n", num_levels, open.c_str());
  std::fflush(stdout);
  replay(bytes);
}

}  // namespace

int main(int argc, char** argv) {
  int count = 0;
  for (int i = 1; i < argc; ++i) {
    std::vector<std::filesystem::path> paths;
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(argv[i], error)) {
      if (entry.is_regular_file()) paths.push_back(entry.path());
    }
    std::sort(paths.begin(), paths.end());
    for (const auto& path : paths) {
      std::printf("%s\n", path.c_str());  // the last one is the culprit when it crashes
      std::fflush(stdout);
      replay_file(path);
      ++count;
    }
  }
  replay_nested("[", "]");
  replay_nested("{\"a\":", "}");
  std::printf("%d inputs\n", count);
  return count > 0 ? 0 : 1;  // an empty corpus checks nothing
}
