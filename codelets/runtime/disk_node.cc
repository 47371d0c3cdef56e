#include "codelets/runtime/disk_node.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "base/error.h"
#include "codelets/runtime/failure.h"

namespace sluice {
namespace {

constexpr std::uint64_t mebibyte = std::uint64_t{1} << 20;

/// Of a request, so that several threads share one; a multiple of DirectFile::alignment.
constexpr std::size_t piece_bytes = std::size_t{4} << 20;

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

void DiskExtent::read(std::uint64_t at, std::size_t size, std::byte* to) const {
  node_->note_begin(size);
  file_->read(offset_ + at, size, to);
  node_->note_end();
}

void DiskExtent::write(std::uint64_t at, std::size_t size, const std::byte* from) const {
  file_->write(offset_ + at, size, from);
  node_->note_written(size);
}

struct DiskNode::Request {
  DiskNode* node = nullptr;
  std::atomic<std::size_t> pieces_left{0};
};

/// StarPU's way in. What it would call to store something there does nothing, or fails.
struct DiskOperations {
  static void* plug(void* parameter, starpu_ssize_t /*size*/) { return parameter; }
  static void unplug(void* /*base*/) {}
  static int bandwidth(unsigned /*node*/, void* /*base*/) { return 1; }
  static void* allocate(void* /*base*/, std::size_t /*size*/) { return nullptr; }
  static void release(void* /*base*/, void* /*object*/, std::size_t /*size*/) {}
  static void* open(void* /*base*/, void* position, std::size_t /*size*/) { return position; }
  static void close(void* /*base*/, void* /*object*/, std::size_t /*size*/) {}
  static int read(void* base, void* object, void* to, off_t offset, std::size_t size) noexcept {
    DiskNode& node = *static_cast<DiskNode*>(base);
    const auto& extent = *static_cast<DiskExtent*>(object);
    node.read_at_once({nullptr, extent.file_, extent.offset_ + static_cast<std::uint64_t>(offset),
                       size, static_cast<std::byte*>(to)});
    return static_cast<int>(size);
  }
  static int write(void* /*base*/, void* /*object*/, const void* /*from*/, off_t /*offset*/,
                   std::size_t /*size*/) noexcept {
    run_failure().record("StarPU wrote to a disk, whose data only its own tasks may change");
    return 0;
  }
  static void* start_read(void* base, void* object, void* to, off_t offset,
                          std::size_t size) noexcept {
    try {
      return static_cast<DiskNode*>(base)->start(*static_cast<DiskExtent*>(object),
                                                 static_cast<std::uint64_t>(offset), size,
                                                 static_cast<std::byte*>(to));
    } catch (const std::exception&) {
      return nullptr;  // out of memory: StarPU reads at once instead
    }
  }
  static void wait(void* request) {
    auto& waiting = *static_cast<DiskNode::Request*>(request);
    waiting.node->wait(waiting);
  }
  static int test(void* request) {
    return static_cast<DiskNode::Request*>(request)->pieces_left.load(std::memory_order_acquire) ==
                   0
               ? 1
               : 0;
  }
  static void free(void* request) { delete static_cast<DiskNode::Request*>(request); }

  static starpu_disk_ops* all() {
    static starpu_disk_ops operations = [] {
      starpu_disk_ops made{};
      made.plug = plug;
      made.unplug = unplug;
      made.bandwidth = bandwidth;
      made.alloc = allocate;
      made.free = release;
      made.open = open;
      made.close = close;
      made.read = read;
      made.write = write;
      made.async_read = start_read;
      made.wait_request = wait;
      made.test_request = test;
      made.free_request = free;
      return made;
    }();
    return &operations;
  }
};

DiskNode::DiskNode(std::uint64_t staging_bytes, int num_threads) : memory_(staging_bytes) {
  if (staging_bytes < mebibyte)
    throw Error("{} bytes of main memory are too few to read a disk into", staging_bytes);
  variables_.set("STARPU_LIMIT_CPU_MEM", std::to_string(staging_bytes / mebibyte));
  threads_.reserve(static_cast<std::size_t>(num_threads));
  for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { serve(); });
}

DiskNode::~DiskNode() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  work_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void DiskNode::attach() {
  node_ = starpu_disk_register(DiskOperations::all(), this, STARPU_DISK_SIZE_MIN);
  if (node_ < 0) throw Error("StarPU takes no disk: {}", std::strerror(-node_));
  // Full, so that nothing is ever moved out to it.
  starpu_memory_allocate(node(), STARPU_DISK_SIZE_MIN, STARPU_MEMORY_OVERFLOW);
}

DataHandle DiskNode::data(const DirectFile& file, std::uint64_t offset, std::size_t size) {
  return DataHandle::on_node(&extents_.emplace_back(*this, file, offset), size, node());
}

DiskUse DiskNode::use() const {
  const std::lock_guard lock(mutex_);
  return use_;
}

void DiskNode::note_begin(std::size_t size) {
  const std::lock_guard lock(mutex_);
  begin_request(size);
}

void DiskNode::note_end() {
  const std::lock_guard lock(mutex_);
  end_request();
}

void DiskNode::note_written(std::size_t size) {
  const std::lock_guard lock(mutex_);
  use_.written_bytes += size;
}

void DiskNode::note_staged() {
  const std::uint64_t used = starpu_memory_get_used(STARPU_MAIN_RAM);
  const std::lock_guard lock(mutex_);
  use_.peak_staged_bytes = std::max(use_.peak_staged_bytes, used);
}

DiskNode::Request* DiskNode::start(const DiskExtent& extent, std::uint64_t offset, std::size_t size,
                                   std::byte* to) {
  note_staged();
  auto request = std::make_unique<Request>();
  request->node = this;
  request->pieces_left = (size + piece_bytes - 1) / piece_bytes;
  {
    const std::lock_guard lock(mutex_);
    for (std::size_t done = 0; done < size; done += piece_bytes) {
      pieces_.push_back({request.get(), extent.file_, extent.offset_ + offset + done,
                         std::min(piece_bytes, size - done), to + done});
    }
    begin_request(size);
  }
  work_.notify_all();
  return request.release();
}

void DiskNode::wait(Request& request) {
  std::unique_lock lock(mutex_);
  done_.wait(lock, [&] { return request.pieces_left.load(std::memory_order_acquire) == 0; });
}

void DiskNode::serve() {
  std::unique_lock lock(mutex_);
  while (true) {
    work_.wait(lock, [this] { return ending_ || !pieces_.empty(); });
    if (ending_) return;
    const Piece piece = pieces_.front();
    pieces_.pop_front();
    lock.unlock();
    read(piece);
    lock.lock();
    if (piece.request->pieces_left.load(std::memory_order_relaxed) == 1) end_request();
    // Last: whoever sees none left frees the request.
    piece.request->pieces_left.fetch_sub(1, std::memory_order_release);
    done_.notify_all();
  }
}

void DiskNode::begin_request(std::size_t size) {
  if (under_way_++ == 0) busy_since_s_ = now_s();
  use_.read_bytes += size;
}

void DiskNode::end_request() {
  if (--under_way_ == 0) use_.read_s += now_s() - busy_since_s_;
}

void DiskNode::read_at_once(const Piece& piece) {
  note_staged();
  note_begin(piece.size);
  read(piece);
  note_end();
}

void DiskNode::read(const Piece& piece) noexcept {
  if (run_failure().happened()) return;
  try {
    piece.file->read(piece.offset, piece.size, piece.to);
  } catch (const std::exception& error) {
    run_failure().record(error.what());
  }
}

}  // namespace sluice
