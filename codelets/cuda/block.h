#pragma once

#include "codelets/cuda/device.h"

namespace sluice::cuda {

/// What all lanes of a warp have, put together by `combine`, which is commutative and associative.
template <typename T, typename Combine>
__device__ T warp_reduce(T value, Combine combine) {
  for (int step = warp_threads / 2; step > 0; step /= 2) {
    value = combine(value, __shfl_xor_sync(all_lanes, value, step));
  }
  return value;
}

/// The same for a block of whole warps; every thread gets it.
template <typename T, typename Combine>
__device__ T block_reduce(T value, Combine combine) {
  __shared__ T of_warps[warp_threads];
  value = warp_reduce(value, combine);
  if (threadIdx.x % warp_threads == 0) of_warps[threadIdx.x / warp_threads] = value;
  __syncthreads();
  value = of_warps[0];
  for (unsigned warp = 1; warp < blockDim.x / warp_threads; ++warp) {
    value = combine(value, of_warps[warp]);
  }
  __syncthreads();  // before the next call's
  return value;
}

/// Sum of what the block's threads before this one have; `total` of all. Whole warps.
template <typename T>
__device__ T block_exclusive_sum(T value, T* total) {
  __shared__ T of_warps[warp_threads];
  const int lane = static_cast<int>(threadIdx.x % warp_threads);
  T sum = value;
  for (int step = 1; step < warp_threads; step *= 2) {
    const T before = __shfl_up_sync(all_lanes, sum, step);
    if (lane >= step) sum += before;
  }
  if (lane == warp_threads - 1) of_warps[threadIdx.x / warp_threads] = sum;
  __syncthreads();
  T before = 0;
  *total = 0;
  for (unsigned warp = 0; warp < blockDim.x / warp_threads; ++warp) {
    if (warp == threadIdx.x / warp_threads) before = *total;
    *total += of_warps[warp];
  }
  __syncthreads();  // before the next call's
  return before + sum - value;
}

}  // namespace sluice::cuda
