#include "engine/measure/gemm_bench.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/median.h"
#include "base/units.h"
#include "codelets/kernels/linear.h"
#include "codelets/kernels/probe.h"
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

std::optional<double> measure_onednn(const GemmShape& shape, std::uint64_t model_bytes,
                                     std::int64_t rows, int rounds) {
  std::optional<OneDnnProduct> product;
  try {
    product.emplace(rows, shape.in, shape.out, shape.dtype, shape.threads);
  } catch (const Error&) {
    return std::nullopt;
  }
  product->take_in_turn(count_in_turn(product->weight_bytes(), model_bytes));
  const auto sample = [&](int products) {
    if (interrupt_flag()) throw Interrupted();
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < products; ++i) product->multiply();
    return seconds_since(start) / products;
  };
  sample(1);
  const int products = products_for(sample(1));
  std::vector<double> samples;
  samples.reserve(static_cast<std::size_t>(rounds));
  for (int round = 0; round < rounds; ++round) samples.push_back(sample(products));
  return median(std::move(samples));
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
