#pragma once

#include <cublasLt.h>

namespace sluice::cuda {

/// cuBLASLt's functions that we use. The library takes 200 MB and a sixth of a second to load, so
/// it is loaded with the first GPU worker and not with every program.
struct CublasLt {
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtDestroy) destroy;
  decltype(&cublasLtGetStatusString) status_string;
  decltype(&cublasLtMatmul) matmul;
  decltype(&cublasLtMatmulAlgoGetHeuristic) find_algorithm;
  decltype(&cublasLtMatmulDescCreate) create_operation;
  decltype(&cublasLtMatmulDescDestroy) destroy_operation;
  decltype(&cublasLtMatmulDescSetAttribute) set_operation;
  decltype(&cublasLtMatrixLayoutCreate) create_layout;
  decltype(&cublasLtMatrixLayoutDestroy) destroy_layout;
  decltype(&cublasLtMatmulPreferenceCreate) create_preference;
  decltype(&cublasLtMatmulPreferenceDestroy) destroy_preference;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference;
};

/// Loads it when first called, from where the dynamic loader finds it or else from beside CUDA's
/// runtime. Throws Error when it is in neither place, or too old to have one of the functions.
const CublasLt& cublas_lt();

}  // namespace sluice::cuda
