#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace sluice::tokenizers {

/// Reads the fields of one protobuf message in wire format, one after the other. Every read is
/// checked: a damaged file gives an Error that begins with `where`.
class ProtobufReader {
 public:
  ProtobufReader(std::string_view message, std::string where)
      : rest_(message), size_(message.size()), where_(std::move(where)) {}

  /// Goes to the next field; false at the end. A value that is not read is skipped.
  bool next();
  std::uint32_t field() const { return field_; }

  // The value of the field. Each throws Error if it is of another wire type.
  std::uint64_t integer();
  bool boolean() { return integer() != 0; }
  float single();
  std::string_view bytes();

 private:
  enum class WireType : std::uint8_t { varint = 0, fixed64 = 1, length = 2, fixed32 = 5 };

  std::uint64_t varint();
  std::string_view take(std::uint64_t num_bytes);
  void expect(WireType type, const char* name) const;
  std::size_t offset() const { return size_ - rest_.size(); }

  std::string_view rest_;
  std::size_t size_;
  std::string where_;
  std::uint32_t field_ = 0;
  WireType type_ = WireType::varint;
  std::uint64_t integer_ = 0;
  std::string_view bytes_;
};

}  // namespace sluice::tokenizers
