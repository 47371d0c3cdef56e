#pragma once

#include <starpu.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <mutex>
#include <thread>
#include <vector>

#include "codelets/runtime/runtime.h"

namespace sluice {

/// A file that is read past the page cache (O_DIRECT), for reading only. Where the file system
/// refuses that, it is read through the cache, and a line in the log says so. Move-only.
class DirectFile {
 public:
  /// What O_DIRECT wants offsets, sizes and memory to be multiples of, bytes.
  static constexpr std::size_t alignment = 4096;

  DirectFile() = default;
  /// Throws Error when the file cannot be opened.
  explicit DirectFile(std::filesystem::path path);
  ~DirectFile();
  DirectFile(DirectFile&& other) noexcept { *this = std::move(other); }
  DirectFile& operator=(DirectFile&& other) noexcept;
  DirectFile(const DirectFile&) = delete;
  DirectFile& operator=(const DirectFile&) = delete;

  /// Reads bytes [offset, offset + size) into `to`, waiting. `offset` is a multiple of `alignment`;
  /// a size that is not has its end read through the page cache, and so has everything when `to`
  /// is not aligned. Thread-safe. Throws Error that names the file when it ends early or cannot be
  /// read.
  void read(std::uint64_t offset, std::size_t size, std::byte* to) const;

  const std::filesystem::path& path() const { return path_; }
  /// Whether the page cache is passed by.
  bool is_direct() const { return direct_ >= 0; }

 private:
  void close() noexcept;
  void read_all(int descriptor, std::uint64_t offset, std::size_t size, std::byte* to) const;

  std::filesystem::path path_;
  int direct_ = -1;  ///< opened with O_DIRECT, if that may be
  int cached_ = -1;
};

/// What a disk node has read.
struct DiskUse {
  std::uint64_t read_bytes = 0;
  double read_s = 0;  ///< during which at least one read was under way
  /// Most of main memory that StarPU counted as a read began: what streams and what tasks compute.
  std::uint64_t peak_staged_bytes = 0;
};

/// A file as a memory node of StarPU's: data whose home is there is read into main memory where a
/// task or a prefetch wants it, by threads of its own, and given up there without being written
/// back. Nothing is ever written to it: StarPU takes it for full. A read that fails sets
/// run_failure(), and the graph drains.
///
/// Lives from before StarPU starts until after it has stopped.
class DiskNode {
 public:
  /// Limits what StarPU allocates of main memory (streamed data, and values between tasks) from the
  /// next start on to `staging_bytes`, rounded down to MiB; memory that is merely registered is not
  /// part of it. Throws Error when that is less than 1 MiB.
  explicit DiskNode(std::uint64_t staging_bytes, int num_threads = 4);
  ~DiskNode();
  DiskNode(const DiskNode&) = delete;
  DiskNode& operator=(const DiskNode&) = delete;

  /// StarPU has started. Throws Error when it takes no disk.
  void attach();
  /// The file that data() is in; no data of another one may live.
  void set_file(DirectFile file);
  /// Bytes [offset, offset + size) of the file; `offset` is a multiple of DirectFile::alignment.
  DataHandle data(std::uint64_t offset, std::size_t size);

  unsigned node() const { return static_cast<unsigned>(node_); }
  DiskUse use() const;

 private:
  struct Extent {
    std::uint64_t offset = 0;
  };
  struct Request;
  struct Piece {
    Request* request = nullptr;
    std::uint64_t offset = 0;
    std::size_t size = 0;
    std::byte* to = nullptr;
  };
  friend struct DiskOperations;

  Request* start(const Extent& extent, std::uint64_t offset, std::size_t size, std::byte* to);
  void wait(Request& request);
  void serve();
  void begin_request(std::size_t size);  ///< with the mutex held, as the next
  void end_request();
  void read_at_once(const Piece& piece);
  void read(const Piece& piece) const noexcept;
  void note_staged();

  int node_ = -1;
  DirectFile file_;
  std::deque<Extent> extents_;
  mutable std::mutex mutex_;
  std::condition_variable work_;
  std::condition_variable done_;
  std::deque<Piece> pieces_;
  bool ending_ = false;
  int under_way_ = 0;  ///< requests
  double busy_since_s_ = 0;
  DiskUse use_;
  std::vector<std::thread> threads_;
};

}  // namespace sluice
