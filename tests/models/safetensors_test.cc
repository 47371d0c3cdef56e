#include "models/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "base/error.h"
#include "tests/support/checkpoint_files.h"
#include "tests/support/expect_error.h"

namespace sluice {
namespace {

using testing::expect_error;
using testing::f32_sequence;
using testing::in_memory;
using testing::raw_safetensors;

Safetensors parse(const std::string& content) { return Safetensors::parse(in_memory(content)); }

void expect_refused(const std::string& content, std::initializer_list<std::string_view> parts) {
  expect_error([&] { parse(content); }, parts);
}

/// One tensor "a" with this entry, and this much data.
std::string with_entry(const std::string& entry, std::size_t data_bytes) {
  return raw_safetensors("{\"a\":" + entry + "}", std::string(data_bytes, '\0'));
}

std::string entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return "{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}";
}

TEST(SafetensorsTest, ReadsTensorsOfEveryFloatType) {
  const auto file =
      parse(testing::safetensors({{"half", "F16", {3}, std::string("\x00\x3c\x00\xc0\x01\x00", 6)},
                                  {"brain", "BF16", {1, 2}, std::string("\x80\x3f\x00\xc0", 4)},
                                  {"single", "F32", {2}, f32_sequence(2)}}));
  std::vector<float> half(3);
  read_floats(file.view("half"), 0, 3, half.data());
  EXPECT_EQ(half, (std::vector<float>{1.0F, -2.0F, 0x1p-24F}));
  std::vector<float> brain(2);
  read_floats(file.view("brain"), 0, 2, brain.data());
  EXPECT_EQ(brain, (std::vector<float>{1.0F, -2.0F}));
  float last = 0;
  read_floats(file.view("single"), 1, 1, &last);
  EXPECT_EQ(last, 1.0F);
  EXPECT_EQ(file.view("brain").shape, (std::vector<std::int64_t>{1, 2}));
}

TEST(SafetensorsTest, AcceptsNoTensorsAndEmptyTensorsAndScalars) {
  EXPECT_TRUE(parse(raw_safetensors("{}", "")).tensors().empty());
  EXPECT_TRUE(parse(with_entry(entry("F32", "[0,5]", "[0,0]"), 0)).view("a").data.empty());
  EXPECT_EQ(parse(with_entry(entry("F32", "[]", "[0,4]"), 4)).view("a").data.size(), 4U);
}

TEST(SafetensorsTest, ToleratesPaddedHeaders) {
  EXPECT_NO_THROW(
      parse(raw_safetensors("{\"a\":" + entry("F16", "[1]", "[0,2]") + "}      ", "xx")));
}

TEST(SafetensorsTest, RefusesFilesTooShortForAHeader) {
  expect_refused("", {"memory.safetensors", "0 bytes", "get it again"});
  expect_refused("1234567", {"7 bytes"});
}

TEST(SafetensorsTest, RefusesHeaderLengthsBeyondTheFileOrTheLimit) {
  std::string file = raw_safetensors("{}", "");
  file[0] = 3;
  expect_refused(file, {"header has 3 bytes", "ends after 10"});
  expect_refused(std::string(8, '\xff'), {"18446744073709551615", "at most 100000000"});
}

TEST(SafetensorsTest, RefusesHeadersThatAreNoJsonObject) {
  expect_refused(raw_safetensors("{\"a\":", ""), {"memory.safetensors", "not valid JSON"});
  expect_refused(raw_safetensors("", ""), {"not valid JSON"});
  expect_refused(raw_safetensors("[1]", ""), {"a JSON object"});
  expect_refused(raw_safetensors("{\"\xff\":1}", ""), {"not valid JSON"});
  expect_refused(with_entry("3", 0), {"tensor \"a\"", "its entry is 3"});
}

TEST(SafetensorsTest, RefusesDeeplyNestedHeaders) {
  const std::size_t depth = 1000000;
  const std::string deep = std::string(depth, '[') + std::string(depth, ']');
  for (const std::string& header : {with_entry(deep, 0), with_entry(entry("F32", deep, "[0,0]"), 0),
                                    with_entry(entry("F32", "[0]", deep), 0)}) {
    expect_refused(header, {"nested deeper than 500 levels"});
  }
}

TEST(SafetensorsTest, RefusesMissingFields) {
  expect_refused(with_entry(R"({"shape":[1],"data_offsets":[0,4]})", 4),
                 {"\"a\"", "dtype is missing"});
  expect_refused(with_entry(R"({"dtype":"F32","data_offsets":[0,4]})", 4), {"shape is missing"});
  expect_refused(with_entry(R"({"dtype":"F32","shape":[1]})", 4), {"data_offsets is missing"});
}

TEST(SafetensorsTest, RefusesShapesThatAreNoSizes) {
  expect_refused(with_entry(entry("F32", "[-1]", "[0,4]"), 4), {"shape holds -1"});
  expect_refused(with_entry(entry("F32", "[1.0]", "[0,4]"), 4), {"shape holds 1.0"});
  expect_refused(with_entry(entry("F32", "\"1\"", "[0,4]"), 4), {"shape is \"1\""});
  expect_refused(with_entry(entry("F32", "[9223372036854775808]", "[0,4]"), 4),
                 {"9223372036854775808"});
}

TEST(SafetensorsTest, RefusesShapesWhoseProductOverflows) {
  expect_refused(with_entry(entry("F32", "[4611686018427387904,4]", "[0,0]"), 0),
                 {"do not fit shape"});
  expect_refused(with_entry(entry("F32", "[9223372036854775807]", "[0,4]"), 4),
                 {"do not fit shape"});
  expect_refused(with_entry(entry("F32", "[4294967296,4294967296]", "[0,0]"), 0),
                 {"do not fit shape"});
}

TEST(SafetensorsTest, RefusesSizesThatDoNotFitTheOffsets) {
  expect_refused(with_entry(entry("F32", "[2]", "[0,4]"), 4), {"\"a\"", "4 bytes", "[2] of F32"});
  expect_refused(with_entry(entry("F4", "[3]", "[0,1]"), 1), {"do not fit"});
}

TEST(SafetensorsTest, RefusesOffsetsOutsideTheFile) {
  expect_refused(with_entry(entry("F32", "[1]", "[4,0]"), 4), {"begin at 4 and end at 0"});
  expect_refused(with_entry(entry("F32", "[1]", "[0,4]"), 3),
                 {"ends at byte 4", "3 bytes of data"});
  expect_refused(with_entry(entry("F32", "[1]", "[18446744073709551612,18446744073709551615]"), 4),
                 {"18446744073709551615"});
  expect_refused(with_entry(entry("F32", "[1]", "[-4,0]"), 4), {"[-4,0]", "two whole numbers"});
  expect_refused(with_entry(entry("F32", "[1]", "[0]"), 4), {"data_offsets is [0]"});
}

TEST(SafetensorsTest, RefusesOverlapsHolesAndLeftovers) {
  const auto two = [](const std::string& a, const std::string& b, std::size_t data_bytes) {
    return raw_safetensors(
        "{\"a\":" + entry("F32", "[1]", a) + ",\"b\":" + entry("F32", "[1]", b) + "}",
        std::string(data_bytes, '\0'));
  };
  EXPECT_NO_THROW(parse(two("[4,8]", "[0,4]", 8)));
  expect_refused(two("[0,4]", "[2,6]", 6), {"\"b\"", "overlaps"});
  expect_refused(two("[0,4]", "[0,4]", 4), {"overlaps"});
  expect_refused(two("[0,4]", "[8,12]", 12), {"\"b\"", "hole"});
  expect_refused(two("[0,4]", "[4,8]", 9), {"end at byte 8", "has 9"});
}

TEST(SafetensorsTest, RefusesDuplicateKeys) {
  const std::string a = entry("F32", "[1]", "[0,4]");
  expect_refused(raw_safetensors("{\"a\":" + a + ",\"a\":" + a + "}", "0123"), {"\"a\"", "twice"});
  expect_refused(with_entry(R"({"dtype":"F32","dtype":"F16","shape":[1],"data_offsets":[0,4]})", 4),
                 {"\"dtype\"", "twice"});
}

TEST(SafetensorsTest, ToleratesOtherTypesUntilTheyAreAskedFor) {
  const auto file = parse(raw_safetensors("{\"mask\":" + entry("I64", "[1]", "[0,8]") +
                                              ",\"odd\":" + entry("Q3_K", "[9]", "[8,9]") + "}",
                                          std::string(9, '\0')));
  expect_error([&] { file.view("mask"); }, {"\"mask\"", "\"I64\"", "BF16, F16 or F32"});
  expect_error([&] { file.view("odd"); }, {"\"odd\"", "\"Q3_K\""});
  expect_error([&] { file.view("none"); }, {"no tensor \"none\""});
}

TEST(SafetensorsTest, SaysOddNamesInOneLine) {
  const std::string name = "x\\ny" + std::string(5000, 'z');
  expect_error([&] { parse(raw_safetensors("{\"" + name + "\":1}", "")); }, {"\"x\\ny", "..."});
}

}  // namespace
}  // namespace sluice
