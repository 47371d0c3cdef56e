#include "codelets/cuda/cublas_lt.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <string>

namespace sluice::cuda {
namespace {

bool is_loaded() {
  const std::string name = "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR);
  return dlopen(name.c_str(), RTLD_LAZY | RTLD_NOLOAD) != nullptr;
}

TEST(CublasLtTest, IsLoadedWhenFirstUsed) {
  ASSERT_FALSE(is_loaded());
  const std::string text = cublas_lt().status_string(CUBLAS_STATUS_ARCH_MISMATCH);
  EXPECT_NE(text.find("architectur"), std::string::npos) << text;
  EXPECT_TRUE(is_loaded());
}

/// What makes and ends descriptions needs no GPU.
TEST(CublasLtTest, ItsFunctionsAreTheOnesThatTheirNamesSay) {
  const CublasLt& lt = cublas_lt();

  cublasLtMatmulDesc_t operation = nullptr;
  ASSERT_EQ(lt.create_operation(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), CUBLAS_STATUS_SUCCESS);
  const cublasOperation_t transposed = CUBLAS_OP_T;
  EXPECT_EQ(
      lt.set_operation(operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed)),
      CUBLAS_STATUS_SUCCESS);
  // One byte is too few for an operation.
  EXPECT_EQ(lt.set_operation(operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, 1),
            CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(lt.destroy_operation(operation), CUBLAS_STATUS_SUCCESS);

  cublasLtMatrixLayout_t layout = nullptr;
  ASSERT_EQ(lt.create_layout(&layout, CUDA_R_16BF, 64, 32, 64), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(lt.destroy_layout(layout), CUBLAS_STATUS_SUCCESS);

  cublasLtMatmulPreference_t preference = nullptr;
  ASSERT_EQ(lt.create_preference(&preference), CUBLAS_STATUS_SUCCESS);
  const std::size_t workspace_bytes = 1 << 20;
  EXPECT_EQ(lt.set_preference(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                              &workspace_bytes, sizeof(workspace_bytes)),
            CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(lt.destroy_preference(preference), CUBLAS_STATUS_SUCCESS);
}

}  // namespace
}  // namespace sluice::cuda
