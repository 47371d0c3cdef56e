#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace sluice {

#if defined(__x86_64__)

/// While it lives, this thread's subnormal numbers count as zeros, as they do for VDPBF16PS:
/// otherwise a multiply-add that meets one takes many times longer.
class FlushSubnormals {
 public:
  FlushSubnormals() : before_(_mm_getcsr()) {
    _mm_setcsr(before_ | _MM_FLUSH_ZERO_MASK | denormals_are_zeros);
  }
  ~FlushSubnormals() { _mm_setcsr(before_); }
  FlushSubnormals(const FlushSubnormals&) = delete;
  FlushSubnormals& operator=(const FlushSubnormals&) = delete;

 private:
  static constexpr unsigned denormals_are_zeros = 0x0040;
  unsigned before_;
};

#else

class FlushSubnormals {};  // they keep their values

#endif

}  // namespace sluice
