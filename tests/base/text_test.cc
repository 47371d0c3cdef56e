#include "base/text.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

TEST(TextTest, ControlCharactersAreWrittenOut) {
  EXPECT_EQ(printable("plain, caf\xC3\xA9 \xF0\x9F\x98\x80"),
            "plain, caf\xC3\xA9 \xF0\x9F\x98\x80");
  EXPECT_EQ(printable("a\nb\r\tc\x1b[31m\x7f"), "a\\nb\\r\\tc\\x1b[31m\\x7f");
  EXPECT_EQ(printable(std::string_view("\0x", 2)), "\\x00x");
  EXPECT_EQ(printable("\xC2\x9B"
                      "31m\xC2\xA0"),
            "\\x9b31m\xC2\xA0")
      << "U+009B begins a sequence, too";
  EXPECT_EQ(printable("\xff\xC2"), "\xff\xC2");
}

TEST(TextTest, LongTextsAreCutInTheMiddle) {
  EXPECT_EQ(shortened(std::string(120, 'a')), std::string(120, 'a'));
  EXPECT_EQ(shortened(std::string(70, 'a') + std::string(5000, 'b') + std::string(30, 'c')),
            std::string(60, 'a') + "...[5100 bytes]..." + std::string(20, 'c'));
  EXPECT_EQ(shortened("abc", 2), "abc") << "shorter than what would be left";
}

TEST(TextTest, CharactersAreNotCut) {
  std::string text(59, 'a');
  for (int i = 0; i < 100; ++i) text += "\xC3\xA9";
  text += std::string(19, 'z');
  EXPECT_EQ(shortened(text), std::string(59, 'a') + "...[278 bytes]..." + std::string(19, 'z'));
}

TEST(TextTest, AMessageIsOneLineWhateverItQuotes) {
  EXPECT_EQ(one_line("cannot read a\nb: No such file"), "cannot read a b: No such file");
  EXPECT_EQ(one_line("x\x1b[2Jy"), "x\\x1b[2Jy");
  const std::string long_value(100'000, 'v');
  const std::string line = one_line("--dtype " + long_value + ": expected f32, bf16 or f16");
  EXPECT_EQ(line, "--dtype " + std::string(60, 'v') + "...[100001 bytes]..." +
                      std::string(19, 'v') + ": expected f32, bf16 or f16");
  std::string words = "--dtype ";
  for (int i = 0; i < 20'000; ++i) words += "word ";
  words += ": expected f32, bf16 or f16";
  EXPECT_LT(one_line(words).size(), 2100U);
  EXPECT_TRUE(one_line(words).starts_with("--dtype word"));
  EXPECT_TRUE(one_line(words).ends_with(": expected f32, bf16 or f16"));
}

}  // namespace
}  // namespace sluice
