// attention_cuda, and the split pair, qk_cuda and sv_cuda.
#include "codelets/attention/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "codelets/qk/qk.h"
#include "codelets/sv/sv.h"
#include "tests/codelets/attention_cases.h"
#include "tests/codelets/attention_data.h"
#include "tests/codelets/cuda/device_data.h"

namespace sluice {
namespace {

using test::AttentionData;
using test::AttentionShape;
using test::OnDevice;

std::vector<std::byte> bytes_of_words(const std::vector<std::int32_t>& words) {
  const auto bytes = test::bytes_of(words);
  return {bytes.begin(), bytes.end()};
}

/// Inputs of attention on the device, and the tag that the engine would give. Away from home, the
/// slab is NaN where new tokens belong.
class DeviceAttention {
 public:
  explicit DeviceAttention(const AttentionData& data, KvPath path = KvPath::slab)
      : DeviceAttention(data.args, data.batch.words, data.q.memory, data.slab.memory, data.vectors,
                        path) {}

  DeviceAttention(const AttentionArgs& args, const std::vector<std::int32_t>& words,
                  const std::vector<std::byte>& q, std::vector<std::byte> slab,
                  const std::vector<float>& vectors, KvPath path)
      : args_(args), words_(bytes_of_words(words)), q_(q), vectors_(vectors) {
    const BatchView batch(words.data());
    args_.kv = path;
    args_.tag.num_tokens = batch.num_rows();
    args_.tag.num_sequences = batch.num_sequences();
    args_.tag.context_tokens = 0;
    for (const BatchSequence& sequence : batch.sequences()) {
      args_.tag.context_tokens += sequence.context + sequence.num_rows;
    }
    if (!at_home(path)) new_kv_.emplace(test::take_new_kv(args.shape, batch, slab));
    slab_.emplace(slab);
    out_bytes_ =
        static_cast<std::size_t>(batch.num_rows() * out_stride()) * size_bytes(args.shape.dtype);
  }

  /// Rows activation_stride() apart.
  std::vector<std::byte> attend(const cuda::Context& gpu) const {
    OnDevice<std::byte> out(out_bytes_);
    attention_cuda(gpu, {.args = &args_,
                         .batch = BatchView(words_.get()),
                         .q = q_.get(),
                         .slab = slab_->get(),
                         .out = out.get(),
                         .new_kv = new_kv(),
                         .vectors = vectors_.get()});
    return out.read();
  }
  std::vector<float> scores(std::size_t count) const {
    OnDevice<float> scores(count);
    qk_cuda(test::gpu(), {.args = &args_,
                          .batch = BatchView(words_.get()),
                          .q = q_.get(),
                          .slab = slab_->get(),
                          .scores = scores.get(),
                          .new_kv = new_kv()});
    return scores.read();
  }
  std::vector<std::byte> values(const std::vector<float>& given) const {
    const OnDevice<float> scores(given);
    OnDevice<std::byte> out(out_bytes_);
    sv_cuda(test::gpu(), {.args = &args_,
                          .batch = BatchView(words_.get()),
                          .scores = scores.get(),
                          .slab = slab_->get(),
                          .out = out.get(),
                          .new_kv = new_kv(),
                          .vectors = vectors_.get()});
    return out.read();
  }

  /// The rows of `out` without what lies between them.
  std::vector<float> rows(const std::vector<std::byte>& out) const {
    const DecoderShape& shape = args_.shape;
    std::vector<float> result;
    result.reserve(out.size());
    for (std::int64_t r = 0; r < args_.tag.num_tokens; ++r) {
      const auto at = static_cast<std::size_t>(r * out_stride()) * size_bytes(shape.dtype);
      const std::vector<float> row = test::to_floats(out.data() + at, shape.q_size(), shape.dtype);
      result.insert(result.end(), row.begin(), row.end());
    }
    return result;
  }

 private:
  std::int64_t out_stride() const {
    return activation_stride(args_.shape.q_size(), args_.shape.dtype);
  }
  const std::byte* new_kv() const { return new_kv_ ? new_kv_->get() : nullptr; }

  AttentionArgs args_;
  OnDevice<std::byte> words_, q_;
  OnDevice<float> vectors_;
  std::optional<OnDevice<std::byte>> slab_, new_kv_;
  std::size_t out_bytes_ = 0;
};

void expect_reference(AttentionData& data, const cuda::Context& gpu = test::gpu()) {
  std::vector<double> expected(data.num_outputs());
  attention_reference(data.operands(), expected.data());
  const DeviceAttention device(data);
  test::expect_close(device.rows(device.attend(gpu)), expected, data.tolerance());
}

class CudaAttentionTest : public ::testing::TestWithParam<std::tuple<DType, AttentionShape>> {
 protected:
  CudaAttentionTest()
      : data_(std::get<1>(GetParam()), std::get<0>(GetParam()), test::ragged_attention),
        device_(data_) {}

  AttentionData data_;
  DeviceAttention device_;
};

TEST_P(CudaAttentionTest, FusedMatchesReferenceAndReadsVisibleTokensOnly) {
  expect_reference(data_);
}

TEST_P(CudaAttentionTest, ScoresMatchReference) {
  std::vector<double> expected(data_.num_scores());
  qk_reference({.args = &data_.args,
                .batch = data_.batch.view(),
                .q = data_.q.data(),
                .slab = data_.slab.data()},
               expected.data());
  test::expect_close(device_.scores(expected.size()), expected,
                     test::tolerance(data_.args.shape.dtype, test::GemmInput::exact, DType::f32));
}

TEST_P(CudaAttentionTest, ValuesMatchReference) {
  test::Random random(5);
  const std::vector<float> scores =
      random.floats(static_cast<std::int64_t>(data_.num_scores()), 5.0);
  std::vector<double> expected(data_.num_outputs());
  sv_reference({.args = &data_.args,
                .batch = data_.batch.view(),
                .scores = scores.data(),
                .slab = data_.slab.data(),
                .vectors = data_.vectors.data()},
               expected.data());
  test::expect_close(device_.rows(device_.values(scores)), expected, data_.tolerance());
}

TEST_P(CudaAttentionTest, RowHasTheSameBitsInEveryBatch) {
  const std::vector<float> together = device_.rows(device_.attend(test::gpu()));
  const DecoderShape& shape = data_.args.shape;
  const std::size_t row_bytes = static_cast<std::size_t>(shape.q_size()) * size_bytes(shape.dtype);
  for (const std::size_t s : {std::size_t{2}, std::size_t{8}, std::size_t{15}}) {
    const BatchSequence& sequence = data_.batch.view().sequences()[s];
    BatchBuilder alone;
    alone.add({.slot = 0,
               .context = sequence.context,
               .tokens = std::vector<std::int32_t>(static_cast<std::size_t>(sequence.num_rows)),
               .pages = data_.batch.view().pages(sequence),
               .sampling = {}},
              BatchBuilder::LogitRows::none);
    const auto first_byte =
        data_.q.memory.begin() + static_cast<std::ptrdiff_t>(row_bytes) * sequence.first_row;
    const DeviceAttention device(
        data_.args, alone.build(),
        {first_byte, first_byte + static_cast<std::ptrdiff_t>(row_bytes) * sequence.num_rows},
        data_.slab.memory, data_.vectors, KvPath::slab);
    const auto first = together.begin() + sequence.first_row * shape.q_size();
    EXPECT_EQ(device.rows(device.attend(test::gpu())),
              std::vector<float>(first, first + sequence.num_rows * shape.q_size()))
        << "sequence " << s;
  }
}

TEST_P(CudaAttentionTest, GivesTheSameBitsAwayFromTheSlab) {
  const DeviceAttention away(data_, KvPath::cached_and_new_kv);
  EXPECT_EQ(away.rows(away.attend(test::gpu())), device_.rows(device_.attend(test::gpu())));
  const std::vector<float> scores = device_.scores(data_.num_scores());
  EXPECT_EQ(away.scores(data_.num_scores()), scores);
  EXPECT_EQ(away.rows(away.values(scores)), device_.rows(device_.values(scores)));
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaAttentionTest,
                         ::testing::Combine(::testing::Values(DType::f32, DType::bf16),
                                            ::testing::ValuesIn(test::attention_shapes)),
                         [](const auto& case_info) {
                           return test::name_of(std::get<0>(case_info.param)) + "_" +
                                  std::get<1>(case_info.param).name;
                         });

/// What the kernels for decode rows and for tiles make of their borders.
class CudaAttentionBorderTest : public ::testing::TestWithParam<AttentionShape> {
 protected:
  static AttentionData data(const std::vector<test::Part>& parts, DType dtype = DType::bf16) {
    return {GetParam(), dtype, parts};
  }
};

TEST_P(CudaAttentionBorderTest, FewAndManyNewRows) {
  for (const std::int32_t context : {0, 61, 128}) {
    std::vector<test::Part> parts;
    for (std::int32_t rows = 1; rows <= 9; ++rows) parts.push_back({context, rows});
    AttentionData few = data(parts);
    SCOPED_TRACE(context);
    expect_reference(few);
  }
}

TEST_P(CudaAttentionBorderTest, ContextsAroundChunks) {
  // Chunks are 128 tokens as long as there are few.
  AttentionData around = data(
      {{126, 1}, {127, 1}, {128, 1}, {129, 1}, {255, 1}, {256, 1}, {126, 3}, {383, 2}, {500, 1}});
  expect_reference(around);
}

TEST_P(CudaAttentionBorderTest, TilesAroundTheirTokensAndQueries) {
  AttentionData around = data({{0, 63}, {0, 64}, {1, 65}, {62, 4}, {63, 4}, {64, 5}, {31, 21}});
  expect_reference(around);
}

TEST_P(CudaAttentionBorderTest, WithoutTensorCores) {
  const cuda::Context& gpu = test::gpu();
  const cuda::Context older{.stream = gpu.stream,
                            .workspace = gpu.workspace,
                            .blas = gpu.blas,
                            .failure = gpu.failure,
                            .compute_capability = 75,
                            .num_multiprocessors = gpu.num_multiprocessors};
  AttentionData mixed = data({{127, 1}, {0, 20}, {129, 2}, {300, 1}});
  expect_reference(mixed, older);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, CudaAttentionBorderTest,
    ::testing::Values(AttentionShape{"head_64_group_1", 2, 2, 64, 0},
                      AttentionShape{"head_24_group_3_window_150", 3, 1, 24, 150},
                      AttentionShape{"head_80_group_4_window_33", 4, 1, 80, 33},
                      AttentionShape{"head_16_group_7_window_64", 7, 1, 16, 64},
                      AttentionShape{"head_128_group_8", 8, 1, 128, 0},
                      AttentionShape{"head_64_group_8_window_128_sinks", 16, 2, 64, 128,
                                     test::Sinks::all},
                      AttentionShape{"head_20_group_17_sinks", 17, 1, 20, 0, test::Sinks::all},
                      AttentionShape{"head_9_group_2_window_200", 4, 2, 9, 200},
                      AttentionShape{"head_20_group_17", 17, 1, 20, 0},
                      AttentionShape{"head_256_group_2", 2, 1, 256, 0}),
    [](const auto& case_info) { return std::string(case_info.param.name); });

/// Sinks where a row is one part, several parts, or in a tile; in f32 and by tensor cores.
TEST(CudaAttentionSinksTest, FarFromTheScoresTheyChangeNoBitOrLeaveNothing) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    AttentionData data(AttentionShape{"head_24_group_3", 6, 2, 24, 0}, dtype,
                       {{3, 1}, {300, 1}, {0, 20}});
    const auto results = [&data] {
      const DeviceAttention device(data);
      const std::vector<float> scores = device.scores(data.num_scores());
      return std::vector<std::vector<float>>{device.rows(device.attend(test::gpu())),
                                             device.rows(device.values(scores))};
    };
    const auto plain = results();
    data.set_sinks(std::vector<float>(6, -1e4F));
    EXPECT_EQ(results(), plain);
    data.set_sinks(std::vector<float>(6, 1e4F));
    for (const std::vector<float>& result : results())
      EXPECT_EQ(result, std::vector<float>(result.size(), 0.0F));
  }
}

TEST(CudaAttentionChunkTest, GrowWithTheContext) {
  // 32 KV heads: 8 chunks at most, so they are 256 tokens from 1024 tokens on.
  for (const DType dtype : {DType::f32, DType::bf16}) {
    DecoderShape shape = test::decoder_shape(AttentionShape{"head_8_kv_32", 32, 32, 8, 0}, dtype);
    AttentionData data(shape, {{1022, 1}, {1023, 1}, {1024, 2}, {1279, 1}});
    expect_reference(data);
  }
}

TEST(CudaAttentionPathTest, PromptsFromNewKvAlone) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const DecoderShape shape =
        test::decoder_shape(AttentionShape{"head_24_group_3", 6, 2, 24, 0}, dtype);
    const AttentionData data(shape, {{0, 17}, {0, 1}, {0, 32}, {0, 3}});
    const DeviceAttention home(data);
    const DeviceAttention away(data, KvPath::new_kv);
    EXPECT_EQ(away.rows(away.attend(test::gpu())), home.rows(home.attend(test::gpu())));
  }
}

TEST(CudaAttentionPathTest, NewPagesAroundTheirBorders) {
  std::vector<test::Part> parts;
  for (const std::int32_t context : {14, 15, 16, 17}) {
    for (const std::int32_t rows : {1, 2, 16, 17, 18}) parts.push_back({context, rows});
  }
  const DecoderShape shape =
      test::decoder_shape(AttentionShape{"head_24_group_3", 6, 2, 24, 0}, DType::bf16);
  const AttentionData data(shape, parts);
  const DeviceAttention home(data);
  const DeviceAttention away(data, KvPath::cached_and_new_kv);
  EXPECT_EQ(away.rows(away.attend(test::gpu())), home.rows(home.attend(test::gpu())));
}

TEST(CudaAttentionErrorTest, HeadsThatAreTooLarge) {
  const DecoderShape shape =
      test::decoder_shape(AttentionShape{"head_258", 1, 1, 258, 0}, DType::bf16);
  const AttentionData data(shape, {{0, 1}});
  EXPECT_THROW(DeviceAttention(data).attend(test::gpu()), Error);
  EXPECT_THROW(DeviceAttention(data).values({1.0F}), Error);
}

TEST(CudaAttentionHandComputedTest, TwoTokens) {
  // As AttentionHandComputedTest: weights 1/4 and 3/4.
  AttentionArgs args;
  args.shape.dtype = DType::f32;
  args.shape.num_heads = args.shape.num_kv_heads = 1;
  args.shape.head_dim = 2;
  args.tag.num_tokens = args.tag.num_sequences = 1;
  args.tag.context_tokens = 2;
  std::vector<float> slab(static_cast<std::size_t>(args.shape.page_elements()));
  const std::size_t v = slab.size() / 2;
  slab[1] = 1.5536724F;
  slab[v] = 4;
  slab[v + 16 + 1] = 8;
  BatchBuilder builder;
  const std::vector<std::int32_t> one = {0};
  builder.add({.context = 1, .tokens = one, .pages = one, .sampling = {}},
              BatchBuilder::LogitRows::none);
  const OnDevice<std::int32_t> words(builder.build());
  const OnDevice<float> q(std::vector<float>{1, 5});
  const OnDevice<float> pages(slab);
  OnDevice<float> out(2);
  attention_cuda(test::gpu(), {.args = &args,
                               .batch = BatchView(words.get()),
                               .q = reinterpret_cast<const std::byte*>(q.get()),
                               .slab = reinterpret_cast<const std::byte*>(pages.get()),
                               .out = reinterpret_cast<std::byte*>(out.get())});
  EXPECT_NEAR(out.read()[0], 1.0, 1e-6);
  EXPECT_NEAR(out.read()[1], 6.0, 1e-6);
}

}  // namespace
}  // namespace sluice
