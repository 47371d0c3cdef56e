// A damaged tokenizer.model is refused in one line that names the file and what is wrong in it.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "base/error.h"
#include "models/tokenizers/sentencepiece.h"
#include "tests/tokenizers/golden_ids.h"

namespace sluice::tokenizers {
namespace {

// --- a writer of the parts of sentencepiece_model.proto that matter here
// ------------------------------------------------

std::string varint(std::uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7) out += static_cast<char>((value & 0x7F) | 0x80);
  return out + static_cast<char>(value);
}
std::string integer_field(unsigned field, std::uint64_t value) {
  return varint(field << 3) + varint(value);
}
std::string bytes_field(unsigned field, const std::string& bytes) {
  return varint((field << 3) | 2) + varint(bytes.size()) + bytes;
}
std::string float_field(unsigned field, float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  std::string out = varint((field << 3) | 5);
  for (unsigned shift = 0; shift < 32; shift += 8) out += static_cast<char>(bits >> shift);
  return out;
}

enum PieceType : std::uint8_t { normal = 1, unknown, control, user_defined, unused, byte };

std::string piece(const std::string& text, float score = -1, unsigned type = normal) {
  return bytes_field(1, bytes_field(1, text) + float_field(2, score) + integer_field(3, type));
}
std::string trainer(const std::string& fields) { return bytes_field(2, fields); }
std::string normalizer(const std::string& fields) { return bytes_field(3, fields); }
const std::string small_model =
    piece("<unk>", 0, unknown) + piece("<s>", 0, control) + piece("\u2581a") + piece("a");

std::string refusal(const std::string& model, const TokenizerConfig& config = {}) {
  try {
    make_tokenizer_from_sentencepiece(model, "x/tokenizer.model", config)
        ->encode("a b\u00E9 a", Tokenizer::SpecialTokens::add);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

void expect_refusal(const std::string& model, const std::vector<std::string>& parts) {
  const std::string message = refusal(model);
  EXPECT_EQ(message.find("x/tokenizer.model: "), 0U) << message;
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  for (const std::string& part : parts)
    EXPECT_NE(message.find(part), std::string::npos) << message << "\nlacks " << part;
}

TEST(SentencePieceErrorTest, SmallModelIsAccepted) {
  EXPECT_EQ(make_tokenizer_from_sentencepiece(small_model, "x")
                ->encode("a b\u00E9 a", Tokenizer::SpecialTokens::add),
            (std::vector<std::int32_t>{1, 2, 0, 2}));
}

TEST(SentencePieceErrorTest, NoProtobuf) {
  expect_refusal("", {"no pieces"});
  expect_refusal("x", {"cut short"});
  expect_refusal("{", {"no protobuf", "wire type 3"});
  expect_refusal("{\"model\": {}}", {});
  expect_refusal(std::string(1, '\0'), {"field number 0"});
  expect_refusal("\x0A\x7Fshort", {"cut short", "127 bytes", "5 are there"});
  expect_refusal(small_model.substr(0, small_model.size() - 1), {"cut short"});
  expect_refusal(std::string(12, '\xFF'), {"no protobuf"});
}

TEST(SentencePieceErrorTest, WrongPieces) {
  expect_refusal(small_model + piece(""), {"piece 4", "empty"});
  expect_refusal(small_model + bytes_field(1, float_field(2, -1)), {"piece 4", "empty"});
  expect_refusal(small_model + piece("a"), {"piece 4", "\"a\"", "piece 3"});
  expect_refusal(small_model + piece("<s>", 0, control), {"piece 4", "\"<s>\"", "piece 1"});
  expect_refusal(small_model + piece("b\xC0"), {"piece 4", "UTF-8"});
  expect_refusal(small_model + piece("b", std::nanf("")), {"piece 4", "\"b\"", "score", "nan"});
  expect_refusal(small_model + piece("b", std::numeric_limits<float>::infinity()),
                 {"piece 4", "score", "inf"});
  expect_refusal(small_model + piece("b", 0, 7), {"piece 4", "type 7"});
  expect_refusal(small_model + piece("b", 0, 0), {"piece 4", "type 0"});
  expect_refusal(small_model + bytes_field(1, integer_field(1, 5)), {"piece 4", "field 1"});
}

TEST(SentencePieceErrorTest, OneUnknownPiece) {
  expect_refusal(piece("a") + piece("b"), {"unknown"});
  expect_refusal(small_model + piece("?", 0, unknown), {"piece 4", "second unknown", "piece 0"});
}

TEST(SentencePieceErrorTest, BytesBelongToByteFallback) {
  const std::string fallback = trainer(integer_field(35, 1));
  expect_refusal(small_model + piece("<0x41>", 0, byte), {"piece 4", "byte_fallback is false"});
  expect_refusal(small_model + piece("<0x4>", 0, byte) + fallback, {"piece 4", "<0x4>"});
  expect_refusal(small_model + fallback, {"<0x00> is missing"});
}

TEST(SentencePieceErrorTest, UnknownKindOfModel) {
  expect_refusal(small_model + trainer(integer_field(3, 5)), {"trainer_spec.model_type is 5"});
  expect_refusal(small_model + trainer(integer_field(3, 0)), {"trainer_spec.model_type is 0"});
  EXPECT_EQ(refusal(small_model + trainer(integer_field(3, 2))), "accepted");
}

/// A table with these units, and `texts` behind it.
std::string charsmap(const std::vector<std::uint32_t>& units, const std::string& texts) {
  const auto four_bytes = [](std::uint32_t value) {
    std::string out;
    for (unsigned shift = 0; shift < 32; shift += 8) out += static_cast<char>(value >> shift);
    return out;
  };
  std::string out = four_bytes(static_cast<std::uint32_t>(4 * units.size()));
  for (const std::uint32_t unit : units) out += four_bytes(unit);
  return normalizer(bytes_field(2, out + texts));
}

/// The letter "a" becomes the text at `offset`. Its node is unit 97 (root's offset 0, XOR 'a'),
/// with the label 'a', a leaf, and offset 2: its value is in unit 99.
std::string charsmap_for_a(std::uint32_t offset, const std::string& texts) {
  std::vector<std::uint32_t> units(256, 0);
  units[97] = (2U << 10) | (1U << 8) | 97;
  units[99] = offset;
  return charsmap(units, texts);
}

TEST(SentencePieceErrorTest, DamagedNormalization) {
  const std::string field = "normalizer_spec.precompiled_charsmap";
  expect_refusal(small_model + normalizer(bytes_field(2, "abc")), {field, "3 bytes"});
  expect_refusal(small_model + normalizer(bytes_field(2, "\xFF\xFF\xFF\x7F....")), {field});
  expect_refusal(small_model + charsmap({0}, ""), {field});
  expect_refusal(small_model + charsmap({0}, "x"), {field, "no end"});
  // The only unit says that its children are elsewhere.
  expect_refusal(small_model + charsmap({0}, std::string("x\0", 2)), {field, "unit 97 of 1"});
  const std::string texts("b\0\xC3\0", 4);
  EXPECT_EQ(refusal(small_model + charsmap_for_a(0, texts)), "accepted");
  expect_refusal(small_model + charsmap_for_a(4, texts), {field, "byte 4 of 4"});
  expect_refusal(small_model + charsmap_for_a(2, texts), {field, "not UTF-8"});
  expect_refusal(small_model + bytes_field(5, bytes_field(2, "rules")), {"denormalizer_spec"});
}

TEST(SentencePieceErrorTest, BosThatDoesNotExist) {
  TokenizerConfig config;
  config.add_bos_token = true;
  EXPECT_EQ(refusal(small_model, config), "accepted");
  EXPECT_NE(refusal(piece("<unk>", 0, unknown) + piece("a"), config).find("add_bos_token"),
            std::string::npos);
  config = {};
  config.add_eos_token = true;
  EXPECT_NE(refusal(small_model, config).find("add_eos_token"), std::string::npos);
}

/// No prefix of a real file is read past its end.
TEST(SentencePieceErrorTest, EveryCutIsRefusedOrAccepted) {
  const std::string whole =
      test::read_bytes(SLUICE_TEST_DATA_DIR "/tokenizers/data/sentencepiece/bpe/tokenizer.model");
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const std::string message = refusal(whole.substr(0, size));
    EXPECT_TRUE(message == "accepted" || message.starts_with("x/tokenizer.model: ")) << message;
  }
}

}  // namespace
}  // namespace sluice::tokenizers
