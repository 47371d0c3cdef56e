#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/memory.h"
#include "base/thread_pool.h"

namespace sluice {

/// What the memory gives these threads when they do nothing but read, by the fastest of several
/// loops. Machines drift, so it is measured again beside every run that it judges.
class ReadProbe {
 public:
  /// Takes memory well beyond the last-level cache, or as much as `working_set_bytes` when what is
  /// judged reads no more than that (a small model stays in caches), and touches it. No
  /// task may run meanwhile.
  ReadProbe(ThreadPool& pool, std::uint64_t working_set_bytes);
  /// Reads this memory, at least least_bytes(pool) of it, wherever it is bound to; touches it.
  ReadProbe(ThreadPool& pool, Buffer buffer);

  /// Bytes per second of the fastest of several loops (which one it is changes with where the host
  /// runs us), each over up to 512 MiB behind those that the last one has read; some 40 ms where
  /// memory gives 50 GB/s. No task may run meanwhile.
  double measure();

  /// Memory that a probe takes on this machine.
  static std::size_t buffer_bytes(std::uint64_t working_set_bytes);
  /// Memory that these threads can share.
  static std::size_t least_bytes(const ThreadPool& pool);

  const Buffer& buffer() const { return buffer_; }
  /// How each thread reads its part: so many streams at once, software prefetch so far ahead.
  struct Loop {
    int num_streams = 1;  ///< 1 or 4
    std::int64_t prefetch_bytes = 0;
  };

 private:
  double pass(const Loop& loop);

  ThreadPool& pool_;
  Buffer buffer_;
  std::int64_t num_passes_ = 0;
};

/// oneDNN's own product of [rows, in] by a weight [out, in], all of one type: in the layout that it
/// likes best, cut as it likes among as many of OpenMP's threads as the thread that makes it asks
/// for. What a program without kernels of its own has. Of that thread alone.
class OneDnnProduct {
 public:
  /// Throws Error when this CPU has no such GEMM.
  OneDnnProduct(std::int64_t rows, std::int64_t in, std::int64_t out, DType dtype, int threads);
  ~OneDnnProduct();
  OneDnnProduct(const OneDnnProduct&) = delete;
  OneDnnProduct& operator=(const OneDnnProduct&) = delete;

  std::size_t weight_bytes() const;
  /// Takes memory for so many weights, which products take in turn.
  void take_in_turn(std::size_t count);
  void multiply();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// One way of multiplying [rows, in] by a packed [in, columns] from a thread's own caches.
struct GemmCandidate {
  std::string name;
  double flops = 0;  ///< of one product
  /// One product on operands of the calling thread's own.
  std::function<void()> multiply;
};

/// What these threads multiply in caches, each on its own, by the fastest of several kernels and
/// shapes: the rate of a GEMM that never waits for memory.
class GemmProbe {
 public:
  /// Picks the fastest candidate. `dtype` is f32 or bf16. Throws Error when the CPU has no such
  /// GEMM. No task may run meanwhile.
  GemmProbe(ThreadPool& pool, DType dtype);

  /// FLOP per second of all threads together, the median of three passes; some 30 ms. No task may
  /// run meanwhile.
  double measure();

  const GemmCandidate& chosen() const { return chosen_; }

 private:
  double pass(const GemmCandidate& candidate, std::int64_t products_per_job);
  std::int64_t products_for(const GemmCandidate& candidate, double seconds);

  ThreadPool& pool_;
  GemmCandidate chosen_;
  std::int64_t products_per_job_ = 1;
};

}  // namespace sluice
