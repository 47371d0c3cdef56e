#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <utility>

namespace sluice {

/// A file that is read and written past the page cache (O_DIRECT). Where the file system refuses
/// that, it goes through the cache, and a line in the log says so. Move-only.
class DirectFile {
 public:
  /// What O_DIRECT wants offsets, sizes and memory to be multiples of, bytes.
  static constexpr std::size_t alignment = 4096;
  /// The next such multiple.
  static constexpr std::uint64_t aligned(std::uint64_t bytes) {
    return (bytes + alignment - 1) / alignment * alignment;
  }

  DirectFile() = default;
  /// For reading only. Throws Error when the file cannot be opened.
  explicit DirectFile(std::filesystem::path path);
  /// A file of `size_bytes` zeros without a name in `folder`, which is gone with the object,
  /// however the program ends. Its room is taken at once. Throws Error when the folder
  /// cannot be written to or has no room.
  static DirectFile temporary(const std::filesystem::path& folder, std::uint64_t size_bytes);
  ~DirectFile();
  DirectFile(DirectFile&& other) noexcept { *this = std::move(other); }
  DirectFile& operator=(DirectFile&& other) noexcept;
  DirectFile(const DirectFile&) = delete;
  DirectFile& operator=(const DirectFile&) = delete;

  /// Reads bytes [offset, offset + size) into `to`, waiting. The end of a size that is no multiple
  /// of `alignment` is read through the page cache, and so is everything when `offset` or `to` is
  /// none. Thread-safe. Throws Error that names the file when it ends early or cannot be read.
  void read(std::uint64_t offset, std::size_t size, std::byte* to) const;
  /// Writes bytes [offset, offset + size), waiting; through the page cache unless all three are
  /// multiples of `alignment`. Thread-safe for different bytes. Throws Error that names the file.
  void write(std::uint64_t offset, std::size_t size, const std::byte* from) const;

  const std::filesystem::path& path() const { return path_; }
  /// Whether the page cache is passed by.
  bool is_direct() const { return direct_ >= 0; }

 private:
  void close() noexcept;
  void open_directly(int flags);
  /// After a call that failed: it was interrupted, or may go through the page cache, which
  /// `descriptor` then is.
  bool may_try_again(const char* what, int& descriptor) const;
  void read_all(int descriptor, std::uint64_t offset, std::size_t size, std::byte* to) const;
  void write_all(int descriptor, std::uint64_t offset, std::size_t size,
                 const std::byte* from) const;

  std::filesystem::path path_;
  int direct_ = -1;  ///< opened with O_DIRECT, if that may be
  int cached_ = -1;
};

}  // namespace sluice
