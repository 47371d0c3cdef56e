#pragma once

#include <starpu.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "base/direct_file.h"
#include "base/environment.h"
#include "codelets/runtime/runtime.h"
#include "codelets/runtime/staging_memory.h"

namespace sluice {

/// What a disk node has moved.
struct DiskUse {
  std::uint64_t read_bytes = 0;
  std::uint64_t written_bytes = 0;
  double read_s = 0;  ///< during which at least one read was under way
  /// Most of main memory that StarPU counted as a read began: what streams and what tasks compute.
  std::uint64_t peak_staged_bytes = 0;
};

class DiskNode;

/// Data on a disk, as a task finds it that works where the data lives (Codelet::with_cpu_at_home).
class DiskExtent {
 public:
  DiskExtent(DiskNode& node, const DirectFile& file, std::uint64_t offset)
      : node_(&node), file_(&file), offset_(offset) {}

  /// DirectFile's, from the extent's begin; counted.
  void read(std::uint64_t at, std::size_t size, std::byte* to) const;
  void write(std::uint64_t at, std::size_t size, const std::byte* from) const;

 private:
  friend class DiskNode;
  friend struct DiskOperations;
  DiskNode* node_;
  const DirectFile* file_;
  std::uint64_t offset_;
};

/// Files as a memory node of StarPU's: data whose home is there is read into main memory where a
/// task or a prefetch wants it, by threads of its own, and given up there without being written
/// back: StarPU takes it for full. Only tasks that work there write to it. A read that fails sets
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
  /// Bytes [offset, offset + size) of a file that outlives the handle, and may be opened as late as
  /// before tasks use it; `offset` is a multiple of DirectFile::alignment.
  DataHandle data(const DirectFile& file, std::uint64_t offset, std::size_t size);

  unsigned node() const { return static_cast<unsigned>(node_); }
  DiskUse use() const;
  const StagingMemory& memory() const { return memory_; }

 private:
  struct Request;
  struct Piece {
    Request* request = nullptr;
    const DirectFile* file = nullptr;
    std::uint64_t offset = 0;
    std::size_t size = 0;
    std::byte* to = nullptr;
  };
  friend class DiskExtent;
  friend struct DiskOperations;

  Request* start(const DiskExtent& extent, std::uint64_t offset, std::size_t size, std::byte* to);
  void wait(Request& request);
  void serve();
  void begin_request(std::size_t size);  ///< with the mutex held, as the next
  void end_request();                    ///< likewise
  void read_at_once(const Piece& piece);
  static void read(const Piece& piece) noexcept;
  void note_staged();
  void note_begin(std::size_t size);
  void note_end();
  void note_written(std::size_t size);

  StarpuVariables variables_;
  StagingMemory memory_;
  int node_ = -1;
  std::deque<DiskExtent> extents_;
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
