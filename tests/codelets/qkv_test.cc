#include "codelets/qkv/qkv.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "codelets/kv_store/kv_store.h"
#include "tests/codelets/codelet_data.h"
#include "tests/support/engine.h"

namespace sluice {
namespace {

using test::Random;

struct Shape {
  const char* name;
  std::int64_t hidden_size;
  std::int64_t num_heads;
  std::int64_t num_kv_heads;
  std::int64_t head_dim;
  bool rope;
  NormKind norm;
  NormPlace norm_place;
  test::VectorChoice vectors;
};

std::ostream& operator<<(std::ostream& out, const Shape& shape) { return out << shape.name; }

/// What an untouched element of the slab holds; exact in bf16.
constexpr float untouched = -96.0F;

class QkvTest : public ::testing::TestWithParam<std::tuple<DType, Shape>> {
 protected:
  QkvTest() : random_(31) {
    const auto& [dtype, from] = GetParam();
    DecoderShape& shape = args_.shape;
    shape.dtype = dtype;
    shape.hidden_size = from.hidden_size;
    shape.num_heads = from.num_heads;
    shape.num_kv_heads = from.num_kv_heads;
    shape.head_dim = from.head_dim;
    shape.rope = from.rope;
    shape.norm = from.norm;
    shape.norm_place = from.norm_place;
    vectors_ = test::make_vectors(random_, shape, from.vectors);
    args_.vectors = vectors_.layout;
    batch_ = test::make_batch(random_, {{0, 20}, {37, 1}, {16, 1}, {15, 18}, {0, 1}, {200, 30}}, 9);
    x_ = random_.floats(batch_.num_rows() * shape.hidden_size, 3.0);
    weight_ = test::make_weight(random_, shape.qkv_size(), shape.hidden_size, dtype);
    for (std::int64_t r = 0; shape.rope && r < batch_.num_rows(); ++r) {
      for (const bool is_cos : {true, false}) {
        for (std::int64_t i = 0; i < shape.head_dim / 2; ++i) {
          const double angle = 0.1 * static_cast<double>(r) + 0.3 * static_cast<double>(i);
          rope_.push_back(static_cast<float>(is_cos ? std::cos(angle) : std::sin(angle)));
        }
      }
    }
    const auto elements = static_cast<std::size_t>(batch_.num_pages * shape.page_elements());
    slab_ = test::make_operand(std::vector<float>(elements, untouched), dtype).memory;
    q_.resize(static_cast<std::size_t>(batch_.num_rows() * shape.q_size()) * size_bytes(dtype));
  }

  QkvOperands operands() {
    return {.args = &args_,
            .batch = batch_.view(),
            .x = x_.data(),
            .rope = args_.shape.rope ? rope_.data() : nullptr,
            .vectors = vectors_.values.data(),
            .weight = weight_.packed.data(),
            .q = q_.data(),
            .slab = slab_.data()};
  }

  /// q, k and v of every row [rows, qkv_size], k and v from where the page table says they are;
  /// checks that the rest of the slab is as it was.
  std::vector<float> gather() {
    const DecoderShape& shape = args_.shape;
    const BatchView batch = batch_.view();
    const std::vector<float> q =
        test::to_floats(q_.data(), batch.num_rows() * shape.q_size(), shape.dtype);
    const std::int64_t elements = batch_.num_pages * shape.page_elements();
    std::vector<float> slab = test::to_floats(slab_.data(), elements, shape.dtype);
    std::vector<float> result;
    for (std::int64_t r = 0; r < batch.num_rows(); ++r) {
      result.insert(result.end(), q.begin() + r * shape.q_size(),
                    q.begin() + (r + 1) * shape.q_size());
      const BatchRow& row = batch.rows()[static_cast<std::size_t>(r)];
      const auto pages = batch.pages(batch.sequences()[static_cast<std::size_t>(row.sequence)]);
      const std::int64_t page = pages[static_cast<std::size_t>(row.position / page_tokens)];
      for (const std::int64_t half : {0, 1}) {
        for (std::int64_t head = 0; head < shape.num_kv_heads; ++head) {
          for (std::int64_t i = 0; i < shape.head_dim; ++i) {
            const std::int64_t token = row.position % page_tokens;
            const std::int64_t at =
                page * shape.page_elements() +
                (half == 0 ? shape.k_index(head, token, i) : shape.v_index(head, token, i));
            result.push_back(std::exchange(slab[static_cast<std::size_t>(at)], untouched));
          }
        }
      }
    }
    EXPECT_EQ(slab, std::vector<float>(slab.size(), untouched)) << "someone else's KV was written";
    return result;
  }

  Random random_;
  QkvArgs args_;
  test::LayerVectors vectors_;
  test::RaggedBatch batch_;
  std::vector<float> x_, rope_;
  test::Weight weight_;
  std::vector<std::byte> slab_, q_;
};

TEST_P(QkvTest, MatchesReferenceAndWritesItsTokensPagesOnly) {
  std::vector<double> expected(
      static_cast<std::size_t>(batch_.num_rows() * args_.shape.qkv_size()));
  qkv_reference(operands(), weight_.plain.values.data(), expected.data());
  qkv_cpu(test::cpu(), operands());
  const DType dtype = args_.shape.dtype;
  test::expect_close(gather(), expected, test::tolerance(dtype, test::GemmInput::rounded, dtype));
}

TEST_P(QkvTest, GivesTheSameBitsAsAStarPuTask) {
  std::vector<std::byte> slab = slab_;
  std::vector<std::byte> q(q_.size());
  qkv_cpu(test::cpu(), operands());
  test::runtime();
  {
    const DataHandle batch = DataHandle::of_memory(batch_.words.data(), 4 * batch_.words.size());
    const DataHandle x = DataHandle::of_memory(x_.data(), 4 * x_.size());
    const DataHandle rope =
        rope_.empty() ? DataHandle() : DataHandle::of_memory(rope_.data(), 4 * rope_.size());
    const DataHandle vectors =
        DataHandle::of_memory(vectors_.values.data(), 4 * vectors_.values.size());
    const DataHandle weight = DataHandle::of_memory(weight_.packed.data(), weight_.packed.size());
    const DataHandle to_q = DataHandle::of_memory(q.data(), q.size());
    const DataHandle to_slab = DataHandle::of_memory(slab.data(), slab.size());
    submit_qkv(args_, {batch, x, rope, vectors, weight, to_q, to_slab, DataHandle()});
  }
  EXPECT_FALSE(run_failure().happened());
  EXPECT_EQ(q, q_);
  EXPECT_EQ(slab, slab_);
}

TEST_P(QkvTest, PassesOnWhatTheSlabWouldHold) {
  const DecoderShape& shape = args_.shape;
  const std::vector<std::byte> before = slab_;
  qkv_cpu(test::cpu(), operands());
  const std::vector<std::byte> expected_q = q_;
  const std::vector<std::byte> expected_slab = slab_;

  // Into new_kv alone; storing that is what is left to do.
  std::vector<std::byte> new_kv(new_kv_bytes(shape, batch_.num_rows()));
  q_.assign(q_.size(), std::byte{0});
  slab_ = before;
  QkvOperands passing = operands();
  passing.new_kv = new_kv.data();
  passing.slab = nullptr;
  qkv_cpu(test::cpu(), passing);
  EXPECT_EQ(q_, expected_q);
  EXPECT_EQ(slab_, before);
  const KvStoreArgs store{{}, shape};
  kv_store_cpu(test::cpu(), {&store, batch_.view(), new_kv.data(), slab_.data()});
  EXPECT_EQ(slab_, expected_slab);

  // Into both.
  std::vector<std::byte> again(new_kv.size());
  slab_ = before;
  passing = operands();
  passing.new_kv = again.data();
  qkv_cpu(test::cpu(), passing);
  EXPECT_EQ(again, new_kv);
  EXPECT_EQ(slab_, expected_slab);
}

constexpr auto layer_norm = NormKind::layer_norm;
constexpr auto rms_norm = NormKind::rms_norm;
constexpr auto pre = NormPlace::pre;
constexpr auto post = NormPlace::post;
const test::VectorChoice weight_only{.norm_weight = true};
const test::VectorChoice all_vectors{.norm_weight = true, .norm_bias = true, .linear_bias = true};
const test::VectorChoice no_vectors{.norm_weight = false};
const test::VectorChoice biases_only{.norm_weight = false, .linear_bias = true};

INSTANTIATE_TEST_SUITE_P(
    Shapes, QkvTest,
    ::testing::Combine(
        ::testing::Values(DType::f32, DType::bf16),
        ::testing::Values(
            Shape{"hidden_63_head_9", 63, 7, 7, 9, false, layer_norm, pre, all_vectors},
            Shape{"hidden_72_head_24_group_3", 72, 3, 1, 24, true, rms_norm, pre, weight_only},
            Shape{"hidden_72_head_28_group_3_biases", 72, 6, 2, 28, true, rms_norm, pre,
                  all_vectors},
            Shape{"hidden_200_head_64_group_4", 200, 4, 1, 64, true, rms_norm, pre, no_vectors},
            Shape{"hidden_200_head_80_post", 200, 2, 2, 80, false, layer_norm, post, all_vectors},
            Shape{"hidden_63_head_128_group_7", 63, 7, 1, 128, true, rms_norm, pre, biases_only},
            Shape{"hidden_200_head_9_post_no_affine", 200, 4, 4, 9, false, layer_norm, post,
                  no_vectors})),
    [](const auto& case_info) {
      return test::name_of(std::get<0>(case_info.param)) + "_" + std::get<1>(case_info.param).name;
    });

}  // namespace
}  // namespace sluice
