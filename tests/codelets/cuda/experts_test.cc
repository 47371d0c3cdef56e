#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "base/weight_format.h"
#include "codelets/experts/experts_gpu_memory.h"
#include "tests/codelets/cuda/device_data.h"
#include "tests/codelets/mixture_fixture.h"

namespace sluice {
namespace {

using test::OnDevice;
using test::PackedExperts;
using test::Spread;

/// A layer's experts on the device, a task for each chunk.
class CudaExperts {
 public:
  explicit CudaExperts(const PackedExperts& experts)
      : layout_(experts.layout), cut_(experts.cut), places_(experts.order.places) {
    for (const Buffer& chunk : experts.chunks)
      chunks_.push_back(std::make_unique<OnDevice<std::byte>>(test::memory_of(chunk)));
  }

  std::vector<float> run(const cuda::Context& gpu, ExpertsArgs args,
                         const std::vector<std::byte>& rows,
                         const std::vector<ExpertChoice>& choices) const {
    const OnDevice<std::byte> normed(rows);
    const OnDevice<ExpertChoice> routing(choices);
    OnDevice<float> sum(std::vector<float>(
        static_cast<std::size_t>(args.tag.num_tokens * args.shape.hidden_size), 7.0F));
    args.layout = layout_;
    args.chunks = cut_;
    args.num_chunks = 1;
    run_chunks(gpu, args, normed, routing, 0, cut_.count(), sum.get());
    return sum.read();
  }
  /// Hot ones' sum, and that of the others.
  std::array<std::vector<float>, 2> run_hot(ExpertsArgs args, const std::vector<std::byte>& rows,
                                            const std::vector<ExpertChoice>& choices) const {
    const OnDevice<std::byte> normed(rows);
    const OnDevice<ExpertChoice> routing(choices);
    const auto count = static_cast<std::size_t>(args.tag.num_tokens * args.shape.hidden_size);
    OnDevice<float> hot_sum(count);
    OnDevice<float> sum(count);
    args.layout = layout_;
    args.chunks = cut_;
    args.num_chunks = 1;
    run_chunks(test::gpu(), args, normed, routing, 0, cut_.num_hot_chunks(), hot_sum.get());
    run_chunks(test::gpu(), args, normed, routing, cut_.num_hot_chunks(), cut_.count(), sum.get());
    return {hot_sum.read(), sum.read()};
  }

 private:
  void run_chunks(const cuda::Context& gpu, ExpertsArgs args, const OnDevice<std::byte>& normed,
                  const OnDevice<ExpertChoice>& routing, std::int32_t begin, std::int32_t end,
                  float* sum) const {
    for (std::int32_t chunk = begin; chunk < end; ++chunk) {
      args.first_chunk = chunk;
      args.sum = chunk == begin ? ExpertsArgs::Sum::written : ExpertsArgs::Sum::added_to;
      experts_cuda(gpu, {.args = &args,
                         .normed = normed.get(),
                         .routing = routing.get(),
                         .places = cut_.num_hot > 0 ? places_.get() : nullptr,
                         .chunks = {chunks_[static_cast<std::size_t>(chunk)]->get()},
                         .sum = sum});
    }
  }

  ExpertLayout layout_;
  ExpertChunks cut_;
  OnDevice<std::int32_t> places_;
  std::vector<std::unique_ptr<OnDevice<std::byte>>> chunks_;
};

/// Without what needs a newer generation: sums have no tensor cores.
cuda::Context older_gpu() {
  cuda::Context gpu = test::gpu().with_workspace(test::gpu().workspace);
  gpu.compute_capability = 75;
  return gpu;
}

class CudaExpertsTest : public test::ExpertsFixture {
 protected:
  PackedExperts packed(std::int32_t per_chunk) {
    random_ = test::Random(91);
    return {random_, args_.shape, args_.mixture.num_experts, per_chunk};
  }
  std::vector<float> run(const CudaExperts& experts, const cuda::Context& gpu = test::gpu()) const {
    return experts.run(gpu, args_, normed_, routing_);
  }
  test::Tolerance close() const {
    return test::tolerance(args_.shape.dtype, test::GemmInput::rounded, DType::f32);
  }
};

TEST_P(CudaExpertsTest, MatchesReference) {
  const PackedExperts experts = packed(args_.mixture.num_experts);
  const CudaExperts there(experts);
  const cuda::Context older = older_gpu();
  for (const Spread spread : {Spread::random, Spread::all_to_one, Spread::none_to_the_first}) {
    for (const std::int64_t rows : {1, 5, 70}) {
      if (rows == 70 && spread != Spread::random) continue;
      SCOPED_TRACE(rows);
      set_rows(rows, spread);
      test::expect_close(run(there), expected(experts), close());
      if (rows == 5) test::expect_close(run(there, older), expected(experts), close());
    }
  }
  EXPECT_EQ(test::take_device_failure().code, cuda::DeviceFailure::none);
}

TEST_P(CudaExpertsTest, ChunksAndOtherRowsChangeNoBit) {
  const std::int32_t num_experts = args_.mixture.num_experts;
  const CudaExperts whole(packed(num_experts));
  constexpr std::int64_t rows = 19;
  set_rows(rows, Spread::random);
  const std::vector<float> expected = run(whole);
  for (const std::int32_t per_chunk : {2, (num_experts + 2) / 3}) {
    if (num_experts > 10 * per_chunk) continue;
    EXPECT_EQ(run(CudaExperts(packed(per_chunk))), expected) << per_chunk << " experts a chunk";
  }
  const std::size_t row_bytes = normed_.size() / rows;
  const auto per_token = static_cast<std::size_t>(args_.mixture.experts_per_token);
  const auto hidden = static_cast<std::ptrdiff_t>(args_.shape.hidden_size);
  ExpertsArgs alone = args_;
  alone.tag.num_tokens = 1;
  for (const std::size_t row : {0, 7, 18}) {
    const std::vector<std::byte> normed(normed_.data() + row * row_bytes,
                                        normed_.data() + (row + 1) * row_bytes);
    const std::vector<ExpertChoice> routing(routing_.data() + row * per_token,
                                            routing_.data() + (row + 1) * per_token);
    const auto first = expected.begin() + static_cast<std::ptrdiff_t>(row) * hidden;
    EXPECT_EQ(whole.run(test::gpu(), alone, normed, routing),
              std::vector<float>(first, first + hidden))
        << "row " << row;
  }
}

TEST_P(CudaExpertsTest, AnExpertThatThereIsNotIsTheDevicesFailure) {
  const CudaExperts experts(packed(args_.mixture.num_experts));
  for (const std::int32_t wrong : {-1, args_.mixture.num_experts}) {
    set_rows(3, Spread::random);
    args_.tag.layer = 17;
    routing_.back().expert = wrong;
    run(experts);
    const cuda::DeviceFailure failure = test::take_device_failure();
    EXPECT_EQ(failure.code, cuda::DeviceFailure::expert_outside_mixture);
    EXPECT_EQ(failure.row, 2);
    EXPECT_EQ(failure.value, 17);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaExpertsTest, test::mixture_cases(),
                         [](const auto& case_info) { return test::mixture_name(case_info); });

/// 2 of 5 experts, whose sizes are no multiples of a strip or of a group.
constexpr test::MixtureCase odd_mixture = {"odd", 104, 200, 5, 2, RouterKind::softmax_first,
                                           true,  true};

class CudaExpertFormats : public test::ExpertRowsOf,
                          public ::testing::TestWithParam<std::tuple<DType, std::string>> {
 protected:
  CudaExpertFormats() : ExpertRowsOf(std::get<0>(GetParam()), odd_mixture) {}
};

TEST_P(CudaExpertFormats, MatchTheReferenceAndHaveNoTraceOfChunks) {
  const WeightFormat format = parse_weight_format(std::get<1>(GetParam()));
  const auto packed = [&](std::int32_t per_chunk) {
    random_ = test::Random(91);
    return PackedExperts(random_, args_.shape, {.num_experts = 5, .per_chunk = per_chunk}, format);
  };
  const PackedExperts experts = packed(5);
  const CudaExperts whole(experts);
  for (const std::int64_t rows : {1, 41}) {  // tiles of 16 rows, and of 64
    SCOPED_TRACE(rows);
    set_rows(rows, Spread::random);
    const std::vector<float> sum = whole.run(test::gpu(), args_, normed_, routing_);
    test::expect_close(sum, expected(experts),
                       test::tolerance(args_.shape.dtype, test::GemmInput::rounded, DType::f32));
    for (const std::int32_t per_chunk : {1, 3}) {
      EXPECT_EQ(CudaExperts(packed(per_chunk)).run(test::gpu(), args_, normed_, routing_), sum)
          << per_chunk << " experts a chunk";
    }
  }
  EXPECT_EQ(test::take_device_failure().code, cuda::DeviceFailure::none);
}

INSTANTIATE_TEST_SUITE_P(All, CudaExpertFormats,
                         ::testing::Combine(::testing::Values(DType::f32, DType::bf16),
                                            ::testing::Values("int4-g32", "int4-g128z", "int8-g64",
                                                              "int8-g0", "mxfp4", "fp8-row")),
                         [](const auto& of) {
                           std::string name =
                               test::name_of(std::get<0>(of.param)) + "_" + std::get<1>(of.param);
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST_P(CudaExpertFormats, HotOnesHaveASumOfTheirOwn) {
  const WeightFormat format = parse_weight_format(std::get<1>(GetParam()));
  std::vector<std::array<std::vector<float>, 2>> found;
  for (const std::int32_t per_chunk : {1, 3}) {
    random_ = test::Random(91);
    const ExpertChunks cut{
        .num_experts = 5, .per_chunk = per_chunk, .num_hot = 2, .per_hot_chunk = per_chunk};
    const PackedExperts experts(random_, args_.shape, cut, format, {3, 1});
    set_rows(9, Spread::random);
    found.push_back(CudaExperts(experts).run_hot(args_, normed_, routing_));
    std::vector<float> all = found.back()[0];
    for (std::size_t i = 0; i < all.size(); ++i) all[i] += found.back()[1][i];
    test::expect_close(all, expected(experts),
                       test::tolerance(args_.shape.dtype, test::GemmInput::rounded, DType::f32));
  }
  EXPECT_EQ(found[0], found[1]);
  EXPECT_EQ(test::take_device_failure().code, cuda::DeviceFailure::none);
}

/// More rows than are computed together, one expert each.
class CudaManyRowsTest : public test::ExpertRowsOf, public ::testing::Test {
 protected:
  CudaManyRowsTest()
      : ExpertRowsOf(DType::f32, {"many", 24, 20, 3, 1, RouterKind::softmax_first, true, true}) {}
};

TEST_F(CudaManyRowsTest, AreCutWithoutATrace) {
  const PackedExperts experts(random_, args_.shape, 3, 2);
  set_rows(ExpertsGpuMemory::most_rows + 3, Spread::random);
  test::expect_close(CudaExperts(experts).run(test::gpu(), args_, normed_, routing_),
                     expected(experts),
                     test::tolerance(DType::f32, test::GemmInput::rounded, DType::f32));
}

}  // namespace
}  // namespace sluice
