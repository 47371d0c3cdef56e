#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/thread_pool.h"
#include "codelets/weights/product.h"
#include "codelets/weights/weight.h"

namespace sluice {

/// How weights of some formats are packed, and multiplied on the CPU: one class a family of
/// formats, each in a file of this folder. A packed weight is made panel by panel of its columns
/// (rows of W), which is also how far loading spreads over threads.
class WeightPacking {
 public:
  /// The one of a format.
  static const WeightPacking& of(const WeightFormat& format);
  static std::size_t size_bytes(const WeightType& type) { return of(type.format).size_of(type); }

  virtual ~WeightPacking() = default;

  /// Bytes of a packed weight.
  virtual std::size_t size_of(const WeightType& type) const = 0;
  virtual std::int64_t num_panels(const WeightType& type) const = 0;
  /// Output columns of every panel but the last, which may have fewer.
  virtual std::int64_t panel_columns(const WeightType& type) const = 0;

  /// x W^T of rows by any weight of the type. It refers to the rows, and may prepare them on the
  /// pool, or on the calling thread, which then keeps the result until its next product.
  virtual std::unique_ptr<Product> product(ThreadPool& pool, const WeightType& type,
                                           const ProductRows& rows) const = 0;
};

}  // namespace sluice
