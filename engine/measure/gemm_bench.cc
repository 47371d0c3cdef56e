#include "engine/measure/gemm_bench.h"

#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <dnnl.hpp>
#include <exception>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/median.h"
#include "base/units.h"
#include "codelets/kernels/linear.h"
#include "codelets/weights/weight_packing.h"
#include "engine/console/interrupt.h"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;

/// Time that one sample should take at least.
constexpr double sample_s = 0.002;
/// Time that all rounds should take at most, and how many there are however long they take.
constexpr double rounds_s = 1.0;
constexpr int fewest_rounds = 3;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

int products_for(double one_s) {
  return std::clamp(static_cast<int>(std::ceil(sample_s / one_s)), 1, 1000);
}

/// Numbers near 0.01, in either type.
void fill(DType dtype, std::byte* data, std::size_t bytes) {
  if (dtype == DType::f32) {
    std::fill_n(reinterpret_cast<float*>(data), bytes / sizeof(float), 0.01F);
  } else {
    std::fill_n(reinterpret_cast<BFloat16*>(data), bytes / sizeof(BFloat16), to_bf16(0.01F));
  }
}

/// Throws Error where memory has no room for as many.
std::size_t count_in_turn(std::size_t each_bytes, std::uint64_t model_bytes) {
  const std::size_t count = operands_in_turn(each_bytes, model_bytes);
  if (count * each_bytes > available_memory_bytes() / 2)
    throw Error("not enough memory to measure products: {} weights of {}, {} available", count,
                format_bytes(each_bytes), format_bytes(available_memory_bytes()));
  return count;
}

}  // namespace

GemmBench::GemmBench(ThreadPool& pool, const GemmShape& shape, std::uint64_t model_bytes,
                     const GemmBenchHomes& homes)
    : pool_(pool),
      shape_(shape),
      type_{.in = shape.in, .out = shape.out, .format = WeightFormat::plain(shape.dtype)},
      turn_(count_in_turn(WeightPacking::size_bytes(type_), model_bytes)) {
  constexpr std::size_t chunk = std::size_t{1} << 20;
  const std::size_t bytes = WeightPacking::size_bytes(type_);
  for (std::size_t i = 0; i < turn_.count(); ++i) {
    Buffer& weight = weights_.emplace_back(bytes);
    if (homes.parts.size() > 1) {
      bind_parts(weight, homes.parts);
    } else {
      interleave_if_allowed(weight, homes.nodes);
    }
    pool.run(static_cast<std::int64_t>((bytes + chunk - 1) / chunk), [&](std::int64_t job) {
      const std::size_t begin = static_cast<std::size_t>(job) * chunk;
      fill(shape_.dtype, weight.data() + begin, std::min(chunk, bytes - begin));
    });
  }
}

std::vector<std::vector<double>> GemmBench::measure(std::int64_t rows,
                                                    std::span<const GemmSchedule> schedules,
                                                    int rounds) {
  const std::size_t x_bytes = static_cast<std::size_t>(rows * shape_.in) * size_bytes(shape_.dtype);
  fill(shape_.dtype, x_.reserve(x_bytes), x_bytes);
  y_.reserve(static_cast<std::size_t>(rows * shape_.out) * size_bytes(shape_.dtype));
  std::vector<int> products;
  double round_s = 0;
  for (const GemmSchedule& schedule : schedules) {
    const double one_s = sample(rows, schedule, 1);
    products.push_back(products_for(one_s));
    round_s += one_s * products.back();
  }
  if (round_s * rounds > rounds_s)
    rounds = std::max(std::min(rounds, fewest_rounds), static_cast<int>(rounds_s / round_s));
  std::vector<std::vector<double>> samples(schedules.size());
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < schedules.size(); ++i) {
      // Back and forth, so that a machine that drifts does so for all.
      const std::size_t which = round % 2 == 0 ? i : schedules.size() - 1 - i;
      samples[which].push_back(sample(rows, schedules[which], products[which]));
    }
  }
  follow_gemm_schedules({});
  return samples;
}

double GemmBench::sample(std::int64_t rows, const GemmSchedule& schedule, int products) {
  if (interrupt_flag()) throw Interrupted();
  GemmSchedules only;
  only.add(shape_, rows, schedule);
  follow_gemm_schedules(std::move(only));
  const Clock::time_point start = Clock::now();
  for (int i = 0; i < products; ++i) {
    linear(pool_, {.weight = {type_, weights_[turn_.next()].data()},
                   .dtype = shape_.dtype,
                   .x = x_.reserve(0),
                   .rows = rows,
                   .dst = y_.reserve(0),
                   .dst_dtype = shape_.dtype});
  }
  return seconds_since(start) / products;
}

namespace {

/// oneDNN's product, on threads of OpenMP.
class OneDnnBench {
 public:
  OneDnnBench(const GemmShape& shape, std::uint64_t model_bytes, std::int64_t rows)
      : engine_(dnnl::engine::kind::cpu, 0) {
    using dnnl::memory;
    const auto type = shape.dtype == DType::f32 ? memory::data_type::f32 : memory::data_type::bf16;
    const memory::desc source({rows, shape.in}, type, memory::format_tag::ab);
    const memory::desc weights({shape.in, shape.out}, type, memory::format_tag::any);
    const memory::desc result({rows, shape.out}, type, memory::format_tag::ab);
    const dnnl::matmul::primitive_desc description({source, weights, result}, engine_);
    primitive_ = dnnl::matmul(description);
    x_ = memory(description.src_desc(), engine_);
    y_ = memory(description.dst_desc(), engine_);
    fill(shape.dtype, static_cast<std::byte*>(x_.get_data_handle()),
         description.src_desc().get_size());
    const std::size_t bytes = description.weights_desc().get_size();
    const std::size_t count = count_in_turn(bytes, model_bytes);
    for (std::size_t i = 0; i < count; ++i) {
      const Buffer& buffer = buffers_.emplace_back(bytes);
      fill(shape.dtype, buffer.data(), bytes);
      weights_.emplace_back(description.weights_desc(), engine_, buffer.data());
    }
    stream_ = dnnl::stream(engine_);
  }

  double sample(int products) {
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < products; ++i) {
      primitive_.execute(stream_, {{DNNL_ARG_SRC, x_},
                                   {DNNL_ARG_WEIGHTS, weights_[next_++ % weights_.size()]},
                                   {DNNL_ARG_DST, y_}});
    }
    stream_.wait();
    return seconds_since(start) / products;
  }

 private:
  dnnl::engine engine_;
  dnnl::stream stream_;
  dnnl::matmul primitive_;
  dnnl::memory x_, y_;
  std::vector<Buffer> buffers_;
  std::vector<dnnl::memory> weights_;
  std::size_t next_ = 0;
};

std::optional<double> measure_onednn(const GemmShape& shape, std::uint64_t model_bytes,
                                     std::int64_t rows, int rounds) {
  omp_set_num_threads(shape.threads);
  try {
    OneDnnBench bench(shape, model_bytes, rows);
    bench.sample(1);
    const int products = products_for(bench.sample(1));
    std::vector<double> samples;
    for (int round = 0; round < rounds; ++round) {
      if (interrupt_flag()) throw Interrupted();
      samples.push_back(bench.sample(products));
    }
    return median(std::move(samples));
  } catch (const dnnl::error&) {
    return std::nullopt;
  }
}

}  // namespace

std::optional<double> onednn_seconds(const GemmShape& shape, std::uint64_t model_bytes,
                                     std::int64_t rows, int rounds) {
  std::optional<double> seconds;
  std::exception_ptr failure;
  std::thread bench([&] {
    try {
      seconds = measure_onednn(shape, model_bytes, rows, rounds);
    } catch (...) {
      failure = std::current_exception();
    }
  });
  bench.join();
  if (failure) std::rethrow_exception(failure);
  return seconds;
}

}  // namespace sluice
