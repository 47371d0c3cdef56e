#include "models/tokenizers/protobuf.h"

#include <bit>
#include <limits>

#include "base/error.h"

namespace sluice::tokenizers {

bool ProtobufReader::next() {
  if (rest_.empty()) return false;
  const std::uint64_t tag = varint();
  const std::uint64_t number = tag >> 3;
  if (number == 0 || number > std::numeric_limits<std::uint32_t>::max() >> 3)
    throw Error("{}: no protobuf: the field number {} at byte {}", where_, number, offset());
  field_ = static_cast<std::uint32_t>(number);
  type_ = static_cast<WireType>(tag & 7);
  switch (type_) {
    case WireType::varint:
      integer_ = varint();
      return true;
    case WireType::fixed64:
      bytes_ = take(8);
      return true;
    case WireType::length:
      bytes_ = take(varint());
      return true;
    case WireType::fixed32:
      bytes_ = take(4);
      return true;
  }
  throw Error("{}: no protobuf: the wire type {} at byte {}", where_, tag & 7, offset());
}

std::uint64_t ProtobufReader::integer() {
  expect(WireType::varint, "a whole number");
  return integer_;
}

float ProtobufReader::single() {
  expect(WireType::fixed32, "a number of four bytes");
  std::uint32_t bits = 0;
  for (std::size_t i = 0; i < 4; ++i)
    bits |= static_cast<std::uint32_t>(static_cast<std::uint8_t>(bytes_[i])) << (8 * i);
  return std::bit_cast<float>(bits);
}

std::string_view ProtobufReader::bytes() {
  expect(WireType::length, "text or a message");
  return bytes_;
}

std::uint64_t ProtobufReader::varint() {
  std::uint64_t value = 0;
  for (unsigned shift = 0; shift < 64; shift += 7) {
    const auto byte = static_cast<std::uint8_t>(take(1)[0]);
    value |= static_cast<std::uint64_t>(byte & 0x7FU) << shift;
    if (byte < 0x80) return value;
  }
  throw Error("{}: no protobuf: a number of more than ten bytes before byte {}", where_, offset());
}

std::string_view ProtobufReader::take(std::uint64_t num_bytes) {
  if (num_bytes > rest_.size()) {
    throw Error("{}: cut short: {} bytes are expected at byte {}, {} are there", where_, num_bytes,
                offset(), rest_.size());
  }
  const std::string_view taken = rest_.substr(0, num_bytes);
  rest_.remove_prefix(num_bytes);
  return taken;
}

void ProtobufReader::expect(WireType type, const char* name) const {
  if (type_ != type) {
    throw Error("{}: field {} has the wire type {}, expected {}", where_, field_,
                static_cast<int>(type_), name);
  }
}

}  // namespace sluice::tokenizers
