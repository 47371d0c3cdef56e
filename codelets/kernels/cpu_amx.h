#pragma once

#include <cstdint>

#include "codelets/kernels/strip_amx.h"

namespace sluice::strip {

/// The CPU's. By its mnemonics, as the compiler's own functions take literal numbers of tiles only.
struct CpuAmx {
  static void configure(const AmxConfiguration& wanted) {
    asm volatile("ldtilecfg %0" ::"m"(wanted));
  }
  static void release() { asm volatile("tilerelease" ::: "memory"); }
  template <int Tile>
  static void zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(Tile));
  }
  template <int Tile>
  static void load(const void* rows, std::int64_t stride_bytes) {
    asm volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(Tile), "r"(rows), "r"(stride_bytes)
                 : "memory");
  }
  template <int Tile>
  static void store(void* rows, std::int64_t stride_bytes) {
    asm volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(Tile), "r"(rows), "r"(stride_bytes)
                 : "memory");
  }
  /// sum += a b, of pairs of bf16
  template <int Sum, int A, int B>
  static void multiply() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(Sum), "i"(A), "i"(B));
  }
  /// sum += a b, bytes with and without sign
  template <int Sum, int A, int B>
  static void multiply_bytes() {
    asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(Sum), "i"(A), "i"(B));
  }
};

}  // namespace sluice::strip
