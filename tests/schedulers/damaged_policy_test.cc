// Policies' files with bits flipped and ends cut off, each loaded in a process of its own: none
// takes it down by a signal. What goes wrong beyond the headers is the dynamic linker's fault.
#include <elf.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <random>
#include <string>

#include "base/error.h"
#include "base/files.h"
#include "schedulers/loader.h"
#include "schedulers/shared_object.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int num_damaged = 30;  // a fork takes many times as long
#else
constexpr int num_damaged = 150;
#endif

/// Bytes [begin, end) of a file.
struct Range {
  std::size_t begin;
  std::size_t end;
};

struct Ending {
  int status = 0;    ///< of waitpid()
  std::string said;  ///< on stderr
};

class DamagedPolicyTest : public ::testing::Test {
 protected:
  std::string whole() const { return whole_; }
  std::string path() const { return folder_.file("policy.so"); }

  Range headers() const { return {0, header().e_phoff + header().e_phnum * sizeof(Elf64_Phdr)}; }

  Range dynamic_section() const {
    for (std::size_t i = 0; i < header().e_phnum; ++i) {
      Elf64_Phdr part{};
      std::memcpy(&part, whole_.data() + header().e_phoff + i * sizeof(part), sizeof(part));
      if (part.p_type == PT_DYNAMIC) return {part.p_offset, part.p_offset + part.p_filesz};
    }
    ADD_FAILURE() << "no dynamic section";
    return {0, 1};
  }

  /// A file with one to four bytes of the range changed.
  std::string changed(Range range, std::mt19937& random) const {
    std::string bytes = whole_;
    const auto any_of = [&](std::size_t count) { return random() % count; };
    for (std::size_t left = 1 + any_of(4); left > 0; --left) {
      char& byte = bytes[range.begin + any_of(range.end - range.begin)];
      byte = any_of(2) == 0 ? static_cast<char>(byte ^ (1 << any_of(8)))
                            : static_cast<char>(any_of(256));
    }
    return bytes;
  }

  /// Loads a file of these bytes in a process of its own.
  Ending load(const std::string& bytes) const {
    // A new file each time: what a process has mapped is never changed.
    unlink(path().c_str());
    folder_.write("policy.so", bytes);
    std::array<int, 2> ends{};
    EXPECT_EQ(pipe(ends.data()), 0);
    const pid_t child = fork();
    if (child == 0) {
      dup2(ends[1], STDERR_FILENO);
      alarm(60);
      load_here();
    }
    close(ends[1]);
    Ending ending;
    std::array<char, 1024> buffer{};
    while (true) {
      const ssize_t count = read(ends[0], buffer.data(), buffer.size());
      if (count <= 0) break;
      ending.said.append(buffer.data(), static_cast<std::size_t>(count));
    }
    close(ends[0]);
    waitpid(child, &ending.status, 0);
    return ending;
  }

  /// Loaded or refused in one line that names the file, whatever the damage.
  void expect_answer(const Ending& ending, const std::string& what) const {
    ASSERT_TRUE(WIFEXITED(ending.status))
        << what << ": signal " << WTERMSIG(ending.status) << ", " << ending.said;
    if (WEXITSTATUS(ending.status) == 0) return;
    // Its own check failed: it says so and ends the process.
    if (WEXITSTATUS(ending.status) == 127 && ending.said.find("ld.so") != std::string::npos) return;
    EXPECT_EQ(WEXITSTATUS(ending.status), 1) << what << ": " << ending.said;
    // The C library's stack protector says "*** stack smashing detected ***" on a line of its own.
    const std::string ours = ending.said.substr(
        ending.said.starts_with("*** ") ? ending.said.find('\n') + 1 : std::size_t{0});
    EXPECT_EQ(std::count(ours.begin(), ours.end(), '\n'), 1) << ending.said;
    EXPECT_NE(ending.said.find("polic"), std::string::npos) << ending.said;
  }

 private:
  const Elf64_Ehdr& header() const { return *reinterpret_cast<const Elf64_Ehdr*>(whole_.data()); }

  [[noreturn]] void load_here() const {
    try {
      const LoadedPolicy policy(path(), {}, {});
      _exit(0);
    } catch (const Error& error) {
      const std::string line = std::string(error.what()) + "\n";
      const ssize_t ignored = write(STDERR_FILENO, line.data(), line.size());
      static_cast<void>(ignored);
      _exit(1);
    } catch (...) {
      _exit(3);
    }
  }

  test::TemporaryFolder folder_;
  std::string whole_ = read_file(std::string(SLUICE_FIXTURE_DIR) + "/throwing.so");
};

TEST_F(DamagedPolicyTest, TheWholeFileIsLoaded) {
  const Ending ending = load(whole());
  EXPECT_TRUE(WIFEXITED(ending.status) && WEXITSTATUS(ending.status) == 0) << ending.said;
  EXPECT_EQ(shared_object_problem(path()), "");
}

TEST_F(DamagedPolicyTest, DamagedHeadersEndNoProcess) {
  std::mt19937 random(1);
  int num_refused = 0;
  for (int i = 0; i < num_damaged; ++i) {
    const Ending ending = load(changed(headers(), random));
    expect_answer(ending, "headers " + std::to_string(i));
    num_refused += shared_object_problem(path()).empty() ? 0 : 1;
  }
  EXPECT_GT(num_refused, num_damaged / 2);  // it was seen, not survived
}

TEST_F(DamagedPolicyTest, ADamagedDynamicSectionEndsNoProcess) {
  std::mt19937 random(2);
  for (int i = 0; i < num_damaged; ++i)
    expect_answer(load(changed(dynamic_section(), random)), "dynamic " + std::to_string(i));
}

TEST_F(DamagedPolicyTest, DamageAnywhereEndsNoProcess) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "what is damaged may be the sanitizer's own table, by which it fills memory";
#endif
  std::mt19937 random(3);
  for (int i = 0; i < num_damaged; ++i)
    expect_answer(load(changed({0, whole().size()}, random)), "any " + std::to_string(i));
}

TEST_F(DamagedPolicyTest, ACutFileEndsNoProcess) {
  std::mt19937 random(4);
  for (int i = 0; i < num_damaged / 3; ++i) {
    const Ending ending = load(whole().substr(0, random() % whole().size()));
    expect_answer(ending, "cut " + std::to_string(i));
  }
}

/// Each by hand: what is written there, and a word of the line.
TEST_F(DamagedPolicyTest, SaysWhatIsWrong) {
  const auto problem_with = [&](std::size_t offset, const std::string& bytes) {
    std::string file = whole();
    file.replace(offset, bytes.size(), bytes);
    load(file);  // writes it
    return shared_object_problem(path());
  };
  const auto expect_part = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  using namespace std::string_literals;
  expect_part(problem_with(EI_CLASS, "\1"s), "no 64-bit object");
  expect_part(problem_with(offsetof(Elf64_Ehdr, e_machine), "\7\0"s), "another kind of processor");
  expect_part(problem_with(offsetof(Elf64_Ehdr, e_type), "\2\0"s), "no shared object");
  expect_part(problem_with(offsetof(Elf64_Ehdr, e_phentsize), "\1\0"s), "headers of 1 bytes");
  expect_part(problem_with(offsetof(Elf64_Ehdr, e_phnum), "\0\0"s), "0 program headers");
  expect_part(problem_with(offsetof(Elf64_Ehdr, e_phoff), "\377\377\377\377\377\377\377\377"s),
              "not whole");
  const std::size_t first = headers().begin + sizeof(Elf64_Ehdr);
  expect_part(problem_with(first + offsetof(Elf64_Phdr, p_align), "\7"s), "aligned to");
  expect_part(problem_with(first + offsetof(Elf64_Phdr, p_filesz), "\377\377\377\377\377\377"s),
              "not whole");
  // The section headers may be gone.
  const std::size_t sections = offsetof(Elf64_Ehdr, e_shoff);
  std::string stripped = whole();
  stripped.replace(sections, 8, std::string(8, '\0'));
  stripped.replace(offsetof(Elf64_Ehdr, e_shnum), 2, std::string(2, '\0'));
  const Ending ending = load(stripped);
  EXPECT_TRUE(WIFEXITED(ending.status) && WEXITSTATUS(ending.status) == 0) << ending.said;
}

}  // namespace
}  // namespace sluice
