#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <utility>

namespace sluice {

inline constexpr std::size_t huge_page_bytes = std::size_t{2} << 20;

/// Zeroed memory that is committed on first touch, from the start of a page on; of a huge one,
/// where it is as large. The one place that allocates large memory.
class Buffer {
 public:
  Buffer() = default;
  /// Throws Error when the address space cannot be had.
  explicit Buffer(std::size_t size_bytes);
  ~Buffer() { release(); }
  Buffer(Buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    if (this != &other) {
      release();
      data_ = std::exchange(other.data_, nullptr);
      size_ = std::exchange(other.size_, 0);
    }
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  /// Takes the pages from the system now, if it can and has them; what is missing then comes on
  /// first touch all the same.
  void commit() const noexcept;

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  void release() noexcept;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

/// Grows to the largest size that was asked for; contents are lost when it grows.
class Workspace {
 public:
  /// At least `size_bytes`, 64-byte aligned.
  std::byte* reserve(std::size_t size_bytes) {
    if (size_bytes > buffer_.size()) {
      buffer_ = Buffer();  // freed before the larger one is taken
      buffer_ = Buffer(size_bytes);
    }
    return buffer_.data();
  }

 private:
  Buffer buffer_;
};

/// Memory that this process may still take, bytes: MemAvailable and the cgroup's limit, whichever
/// is less.
std::uint64_t available_memory_bytes();
/// What the memory limits of this process's control groups (version 1 or 2, and all that they are
/// in) leave, as the system under `root` says: the tightest. Files in the page cache that nobody
/// has read lately count as left. The largest number where there is no limit. Bytes.
std::uint64_t cgroup_available_bytes(const std::filesystem::path& root = "/");
/// Memory of this machine, bytes.
std::uint64_t total_memory_bytes();
/// Of a buffer, bytes that lie in huge pages, as the system says; of neighbours too, at most the
/// buffer's size, where it lists them as one. Nothing where it does not say.
std::optional<std::uint64_t> huge_page_bytes_of(const Buffer& buffer);
/// Largest resident anonymous + file memory of this process so far, bytes (VmHWM).
std::uint64_t peak_resident_bytes();
/// Anonymous memory resident now, bytes (RssAnon).
std::uint64_t anonymous_resident_bytes();

}  // namespace sluice
