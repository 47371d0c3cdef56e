#include <omp.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <dnnl.hpp>
#include <unordered_map>

#include "base/error.h"
#include "codelets/kernels/probe.h"
#include "codelets/kernels/strip_gemm.h"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;
using dnnl::memory;

/// Rows and panel of a product.
struct ProbeShape {
  std::int64_t rows;
  std::int64_t in;
  std::int64_t columns;
};

/// The number 0.5 in either type, in every element.
void fill_half(const Buffer& buffer, DType dtype) {
  if (dtype == DType::f32) {
    std::fill_n(buffer.as<float>(), buffer.size() / sizeof(float), 0.5F);
  } else {
    std::fill_n(buffer.as<BFloat16>(), buffer.size() / sizeof(BFloat16), to_bf16(0.5F));
  }
}

/// oneDNN's matmul, with the weight layout that it likes best.
class OneDnnKernel {
 public:
  struct Operands {
    std::vector<Buffer> buffers;
    std::unordered_map<int, memory> arguments;
    dnnl::stream stream;
  };

  OneDnnKernel(const ProbeShape& shape, DType dtype, DType result_dtype = DType::f32)
      : dtype_(dtype), result_dtype_(result_dtype), engine_(dnnl::engine::kind::cpu, 0) {
    const memory::data_type type = type_of(dtype);
    const memory::desc source({shape.rows, shape.in}, type, memory::format_tag::ab);
    const memory::desc weights({shape.in, shape.columns}, type, memory::format_tag::any);
    const memory::desc result({shape.rows, shape.columns}, type_of(result_dtype),
                              memory::format_tag::ab);
    // The library's own scratch memory is of the thread that made a primitive; kernels for AMX need
    // some.
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    description_ = dnnl::matmul::primitive_desc({source, weights, result}, attributes, engine_);
    primitive_ = dnnl::matmul(description_);
  }

  std::unique_ptr<Operands> make_operands() const {
    auto made = std::make_unique<Operands>();
    const auto add = [&](int which, const memory::desc& desc, DType filling) {
      Buffer& buffer = made->buffers.emplace_back(desc.get_size());
      fill_half(buffer, filling);
      made->arguments.emplace(which, memory(desc, engine_, buffer.data()));
    };
    add(DNNL_ARG_SRC, description_.src_desc(), dtype_);
    add(DNNL_ARG_WEIGHTS, description_.weights_desc(), dtype_);
    add(DNNL_ARG_DST, description_.dst_desc(), result_dtype_);
    if (description_.scratchpad_desc().get_size() != 0)
      add(DNNL_ARG_SCRATCHPAD, description_.scratchpad_desc(), DType::f32);
    made->stream = dnnl::stream(engine_);
    return made;
  }

  void multiply(Operands& operands) const {
    primitive_.execute(operands.stream, operands.arguments);
  }
  std::size_t weight_bytes() const { return description_.weights_desc().get_size(); }

 private:
  static memory::data_type type_of(DType dtype) {
    return dtype == DType::f32 ? memory::data_type::f32 : memory::data_type::bf16;
  }

  DType dtype_;
  DType result_dtype_;
  dnnl::engine engine_;
  dnnl::matmul::primitive_desc description_;
  dnnl::matmul primitive_;
};

/// Our strips of 64 columns, as linear() uses them.
class StripKernel {
 public:
  struct Operands {
    Buffer x, weights, result;
  };

  StripKernel(const ProbeShape& shape, DType dtype) : shape_(shape), dtype_(dtype) {}

  std::unique_ptr<Operands> make_operands() const {
    const auto strips = static_cast<std::size_t>(shape_.columns / strip_columns);
    auto made = std::make_unique<Operands>();
    made->x = Buffer(static_cast<std::size_t>(shape_.rows * x_stride()) * size_bytes(dtype_));
    made->weights = Buffer(strips * strip_bytes(shape_.in, dtype_));
    made->result = Buffer(static_cast<std::size_t>(shape_.rows * strip_columns) * sizeof(float));
    fill_half(made->x, dtype_);
    fill_half(made->weights, dtype_);
    return made;
  }

  void multiply(Operands& operands) const {
    for (std::int64_t strip = 0; strip < shape_.columns / strip_columns; ++strip) {
      strip_gemm({.dtype = dtype_,
                  .rows = shape_.rows,
                  .depth = shape_.in,
                  .a = dtype_ == DType::f32 ? nullptr : operands.x.as<std::uint16_t>(),
                  .wide_a = dtype_ == DType::f32 ? operands.x.as<float>() : nullptr,
                  .a_stride = x_stride(),
                  .b = operands.weights.data() +
                       static_cast<std::size_t>(strip) * strip_bytes(shape_.in, dtype_),
                  .c = operands.result.as<float>(),
                  .c_stride = strip_columns,
                  .arithmetic = fastest_strip_arithmetic()});
    }
  }

 private:
  std::int64_t x_stride() const { return shape_.in + 32; }  // rows in different cache sets
  ProbeShape shape_;
  DType dtype_;
};

/// A kernel, and operands for each thread that uses it, made by that thread.
template <typename Kernel>
class PerThread {
 public:
  PerThread(const ProbeShape& shape, DType dtype) : kernel_(shape, dtype) {}
  void multiply() {
    // Only the thread with this index comes here for this entry.
    auto& mine = operands_.at(static_cast<std::size_t>(ThreadPool::thread_index()));
    if (!mine) mine = kernel_.make_operands();
    kernel_.multiply(*mine);
  }

 private:
  Kernel kernel_;
  std::array<std::unique_ptr<typename Kernel::Operands>, ThreadPool::max_threads> operands_;
};

/// `Kernel` is made from (ProbeShape, DType) once; has a type Operands, `make_operands()`, called
/// by each thread, which returns a unique_ptr of filled ones, and `multiply(Operands&)`, one
/// product, called by many threads at once.
template <typename Kernel>
GemmCandidate candidate(const char* kernel, const ProbeShape& shape, DType dtype) {
  auto threads = std::make_shared<PerThread<Kernel>>(shape, dtype);
  return {.name = fmt::format("{} {} x {} x {}", kernel, shape.rows, shape.in, shape.columns),
          .flops = 2.0 * static_cast<double>(shape.rows * shape.in * shape.columns),
          .multiply = [threads] { threads->multiply(); }};
}

/// Everything that may be the fastest. A new kernel adds its shapes here.
std::vector<GemmCandidate> gemm_candidates(DType dtype) {
  std::vector<GemmCandidate> candidates;
  // Without AVX-512 both types are multiplied as f32, by strips; oneDNN has no bf16 there.
  const bool portable = fastest_bf16_arithmetic() == Bf16Arithmetic::portable;
  for (const ProbeShape& shape :
       {ProbeShape{64, 2048, 128}, ProbeShape{96, 2048, 256}, ProbeShape{128, 2048, 128},
        ProbeShape{192, 2048, 256}, ProbeShape{128, 1024, 256}, ProbeShape{256, 1024, 256},
        ProbeShape{128, 512, 512}, ProbeShape{512, 1024, 512}}) {
    candidates.push_back(candidate<OneDnnKernel>("oneDNN", shape, portable ? DType::f32 : dtype));
    if (portable || dtype == DType::bf16)
      candidates.push_back(candidate<StripKernel>("strips", shape, dtype));
  }
  return candidates;
}

constexpr std::int64_t jobs_per_thread = 8;

}  // namespace

GemmProbe::GemmProbe(ThreadPool& pool, DType dtype) : pool_(pool) {
  try {
    const std::vector<GemmCandidate> candidates = gemm_candidates(dtype);
    std::vector<std::int64_t> products;
    products.reserve(candidates.size());
    for (const GemmCandidate& each : candidates) products.push_back(products_for(each, 0.004));
    double best = 0;
    for (int round = 0; round < 3; ++round) {
      for (std::size_t i = 0; i < candidates.size(); ++i) {
        const double rate = pass(candidates[i], products[i]);
        if (rate > best) chosen_ = candidates[i];
        best = std::max(best, rate);
      }
    }
  } catch (const dnnl::error& error) {
    throw Error("oneDNN has no {} GEMM on this CPU: {}; try --dtype f32", to_string(dtype),
                error.what());
  }
  products_per_job_ = products_for(chosen_, 0.010);
}

/// Products that one job must have for a pass to take about `seconds`.
std::int64_t GemmProbe::products_for(const GemmCandidate& candidate, double seconds) {
  pass(candidate, 1);  // every thread makes its operands
  const double one_each_s = candidate.flops * static_cast<double>(pool_.num_threads()) *
                            jobs_per_thread / pass(candidate, 1);
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(seconds / one_each_s));
}

double GemmProbe::measure() {
  const double a = pass(chosen_, products_per_job_);
  const double b = pass(chosen_, products_per_job_);
  const double c = pass(chosen_, products_per_job_);
  return std::max(std::min(a, b), std::min(std::max(a, b), c));  // the median
}

double GemmProbe::pass(const GemmCandidate& candidate, std::int64_t products_per_job) {
  const std::int64_t num_jobs = jobs_per_thread * pool_.num_threads();
  const Clock::time_point start = Clock::now();
  pool_.run(num_jobs, [&](std::int64_t /*job*/) {
    for (std::int64_t i = 0; i < products_per_job; ++i) candidate.multiply();
  });
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return candidate.flops * static_cast<double>(products_per_job * num_jobs) / seconds;
}

struct OneDnnProduct::Impl {
  DType dtype;
  OneDnnKernel kernel;
  std::unique_ptr<OneDnnKernel::Operands> operands = nullptr;
  std::vector<Buffer> weights = {};
  std::size_t next = 0;
};

OneDnnProduct::OneDnnProduct(std::int64_t rows, std::int64_t in, std::int64_t out, DType dtype,
                             int threads) {
  omp_set_num_threads(threads);
  try {
    impl_ = std::make_unique<Impl>(
        Impl{.dtype = dtype, .kernel = OneDnnKernel({rows, in, out}, dtype, dtype)});
    impl_->operands = impl_->kernel.make_operands();
  } catch (const dnnl::error& error) {
    throw Error("oneDNN has no {} GEMM on this CPU: {}", to_string(dtype), error.what());
  }
  take_in_turn(1);
}

OneDnnProduct::~OneDnnProduct() = default;

std::size_t OneDnnProduct::weight_bytes() const { return impl_->kernel.weight_bytes(); }

void OneDnnProduct::take_in_turn(std::size_t count) {
  while (impl_->weights.size() < count)
    fill_half(impl_->weights.emplace_back(weight_bytes()), impl_->dtype);
}

void OneDnnProduct::multiply() {
  const Buffer& weight = impl_->weights[impl_->next++ % impl_->weights.size()];
  impl_->operands->arguments.at(DNNL_ARG_WEIGHTS).set_data_handle(weight.data());
  impl_->kernel.multiply(*impl_->operands);
  impl_->operands->stream.wait();
}

}  // namespace sluice
