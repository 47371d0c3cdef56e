#include "codelets/cuda/blas.h"

#include <map>
#include <tuple>

#include "base/error.h"
#include "codelets/cuda/cublas_lt.h"

namespace sluice::cuda {
namespace {

std::string shape_of(const Gemm& gemm) {
  return fmt::format("[{}, {}] by [{}, {}] in {}", gemm.rows, gemm.in, gemm.out, gemm.in,
                     to_string(gemm.dtype));
}

void check_blas(cublasStatus_t status, const Gemm& gemm, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error("cuBLASLt failed at {} a product of {}: {}", what, shape_of(gemm),
              cublas_lt().status_string(status));
}

cudaDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return CUDA_R_32F;
    case DType::bf16:
      return CUDA_R_16BF;
    case DType::f16:
      return CUDA_R_16F;
  }
  return CUDA_R_32F;
}

cublasLtEpilogue_t epilogue_of(const Gemm& gemm) {
  if (gemm.epilogue == GemmEpilogue::relu) return CUBLASLT_EPILOGUE_RELU;
  return gemm.bias != nullptr ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

/// One of cuBLASLt's descriptions, with what ends it.
template <typename Handle, cublasStatus_t (*CublasLt::*Destroy)(Handle)>
class Owned {
 public:
  Owned() = default;
  ~Owned() {
    if (handle_ != nullptr) (cublas_lt().*Destroy)(handle_);
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  Handle get() const { return handle_; }
  Handle* put() { return &handle_; }

 private:
  Handle handle_ = nullptr;
};
using Operation = Owned<cublasLtMatmulDesc_t, &CublasLt::destroy_operation>;
using Layout = Owned<cublasLtMatrixLayout_t, &CublasLt::destroy_layout>;
using Preference = Owned<cublasLtMatmulPreference_t, &CublasLt::destroy_preference>;

/// How one shape is computed. cuBLASLt counts matrices by columns: ours are their transposes, so
/// that y^T [out, rows] = W x^T.
struct Plan {
  Operation operation;
  Layout weight, x, y;
  cublasLtMatmulAlgo_t algorithm{};
  bool adds_bias = false;
};

template <typename Value>
void set(const Plan& plan, cublasLtMatmulDescAttributes_t attribute, const Value& value,
         const Gemm& gemm) {
  check_blas(cublas_lt().set_operation(plan.operation.get(), attribute, &value, sizeof(value)),
             gemm, "describing");
}

void describe(Layout& layout, DType dtype, std::int64_t rows, std::int64_t columns,
              std::int64_t stride, const Gemm& gemm) {
  check_blas(
      cublas_lt().create_layout(layout.put(), type_of(dtype), static_cast<std::uint64_t>(rows),
                                static_cast<std::uint64_t>(columns), stride),
      gemm, "describing");
}

auto key_of(const Gemm& gemm) {
  return std::tuple(gemm.rows, gemm.in, gemm.out, gemm.dtype, gemm.x_stride, gemm.weight_stride,
                    gemm.y_dtype, gemm.y_stride, gemm.epilogue, gemm.bias != nullptr);
}

}  // namespace

struct Blas::Impl {
  cublasLtHandle_t handle = nullptr;
  void* workspace = nullptr;
  std::size_t workspace_bytes = 0;
  std::map<decltype(key_of(Gemm{})), Plan> plans;

  void make(const Gemm& gemm, Plan& plan) const {
    // Pedantic: f32 stays f32 whatever NVIDIA_TF32_OVERRIDE says.
    const cublasComputeType_t compute =
        gemm.dtype == DType::f32 ? CUBLAS_COMPUTE_32F_PEDANTIC : CUBLAS_COMPUTE_32F;
    check_blas(cublas_lt().create_operation(plan.operation.put(), compute, CUDA_R_32F), gemm,
               "describing");
    set(plan, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T, gemm);
    set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(gemm), gemm);
    if (gemm.bias != nullptr) {
      set(plan, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CUDA_R_32F, gemm);
      set(plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER, gemm.bias, gemm);
    }
    describe(plan.weight, gemm.dtype, gemm.in, gemm.out, gemm.weight_stride, gemm);
    describe(plan.x, gemm.dtype, gemm.in, gemm.rows, gemm.x_stride, gemm);
    describe(plan.y, gemm.y_dtype, gemm.out, gemm.rows, gemm.y_stride, gemm);

    Preference preference;
    check_blas(cublas_lt().create_preference(preference.put()), gemm, "planning");
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
      check_blas(cublas_lt().set_preference(preference.get(), attribute, &value, sizeof(value)),
                 gemm, "planning");
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_bytes);
    // Sums that were split are put together in f32 and in a fixed order.
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
           std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
    constexpr std::uint32_t alignment_bytes = 16;
    for (const auto attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      prefer(attribute, alignment_bytes);
    }
    plan.adds_bias = gemm.bias != nullptr;
    if (find(gemm, preference, plan)) return;
    if (plan.adds_bias) {
      plan.adds_bias = false;
      set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_DEFAULT, gemm);
      if (find(gemm, preference, plan)) return;
    }
    throw Error("cuBLASLt has no way to compute {}", shape_of(gemm));
  }

  /// The best way to compute it, if there is any.
  bool find(const Gemm& gemm, const Preference& preference, Plan& plan) const {
    cublasLtMatmulHeuristicResult_t found{};
    int count = 0;
    const cublasStatus_t status =
        cublas_lt().find_algorithm(handle, plan.operation.get(), plan.weight.get(), plan.x.get(),
                                   plan.y.get(), plan.y.get(), preference.get(), 1, &found, &count);
    // What it has no kernels for it may also call invalid.
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE)
      return false;
    check_blas(status, gemm, "planning");
    plan.algorithm = found.algo;
    return count > 0 && found.state == CUBLAS_STATUS_SUCCESS;
  }

  const Plan& plan_for(const Gemm& gemm) {
    // Batches come in all sizes; starting anew now and then costs less than keeping them all.
    constexpr std::size_t most_plans = 4096;
    const auto key = key_of(gemm);
    if (const auto known = plans.find(key); known != plans.end()) return known->second;
    if (plans.size() >= most_plans) plans.clear();
    Plan& plan = plans[key];
    try {
      make(gemm, plan);
    } catch (...) {
      plans.erase(key);
      throw;
    }
    return plan;
  }
};

Blas::Blas(void* workspace, std::size_t workspace_bytes) : impl_(std::make_unique<Impl>()) {
  impl_->workspace = workspace;
  impl_->workspace_bytes = workspace_bytes;
  const cublasStatus_t status = cublas_lt().create(&impl_->handle);
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw Error("cuBLASLt cannot start: {}", cublas_lt().status_string(status));
  }
}

Blas::~Blas() {
  impl_->plans.clear();
  cublas_lt().destroy(impl_->handle);
}

bool Blas::multiply(const Gemm& gemm, cudaStream_t stream) {
  const Plan& plan = impl_->plan_for(gemm);
  if (plan.adds_bias) set(plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER, gemm.bias, gemm);
  const float one = 1.0F;
  const float of_y = gemm.epilogue == GemmEpilogue::accumulate ? 1.0F : 0.0F;
  check_blas(
      cublas_lt().matmul(impl_->handle, plan.operation.get(), &one, gemm.weight, plan.weight.get(),
                         gemm.x, plan.x.get(), &of_y, gemm.y, plan.y.get(), gemm.y, plan.y.get(),
                         &plan.algorithm, impl_->workspace, impl_->workspace_bytes, stream),
      gemm, "starting");
  return plan.adds_bias;
}

}  // namespace sluice::cuda
