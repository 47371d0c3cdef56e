#include "perfmodels/measured_model.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "tests/perfmodels/calibrations.h"

namespace sluice {
namespace {

MeasuredModel smooth_model() { return {round_calibration(smooth_attention_s), round_model()}; }

double attention_s(const CostModel& costs, const BatchShape& shape) {
  return costs.compute_s(Device::cpu, Sublayer::attention, shape);
}

TEST(SecondsCurveTest, IsStraightBetweenPointsHeldBelowAndProportionalBeyond) {
  SecondsCurve curve;
  curve.add(2, 10);
  curve.add(4, 30);
  EXPECT_DOUBLE_EQ(curve.at(2), 10);
  EXPECT_DOUBLE_EQ(curve.at(3), 20);
  EXPECT_DOUBLE_EQ(curve.at(4), 30);
  EXPECT_DOUBLE_EQ(curve.at(1), 10);
  EXPECT_DOUBLE_EQ(curve.at(0), 10);
  EXPECT_DOUBLE_EQ(curve.at(8), 60);
  EXPECT_DOUBLE_EQ(curve.at(std::nan("")), 10);
}

TEST(SecondsCurveTest, RefusesWhatIsNoCurve) {
  SecondsCurve curve;
  curve.add(2, 10);
  EXPECT_THROW(curve.add(2, 11), Error);
  EXPECT_THROW(curve.add(3, 0), Error);
  EXPECT_THROW(curve.add(3, std::nan("")), Error);
}

TEST(MeasuredModelTest, LinearSublayersAreInterpolatedOverAllRows) {
  const MeasuredModel costs = smooth_model();
  for (const Sublayer sublayer :
       {Sublayer::qkv, Sublayer::out_proj, Sublayer::fc1, Sublayer::fc2}) {
    // Decode's batches and prefill's rows are one curve.
    EXPECT_NEAR(costs.compute_s(Device::cpu, sublayer, BatchShape::decode(3, 70)), 3e-3, 1e-12);
    EXPECT_NEAR(costs.compute_s(Device::cpu, sublayer, BatchShape::prefill(2, 10)), 20e-3, 1e-12);
    EXPECT_NEAR(costs.compute_s(Device::cpu, sublayer, BatchShape::prefill(1, 1000)), 1, 1e-9);
  }
  EXPECT_NEAR(costs.lm_head_s(Device::cpu, 10), 20e-3, 1e-12);
  EXPECT_EQ(costs.lm_head_s(Device::cpu, 0), 0);
}

TEST(MeasuredModelTest, DecodeAttentionIsInterpolatedOverBatchAndPages) {
  const MeasuredModel costs = smooth_model();
  for (const std::int64_t batch : {1, 2, 4, 11, 16}) {
    // Buckets are full pages: 2, 8 and 32. What lies between them is measured full, too.
    for (const std::int64_t context : {32, 64, 128, 304, 512}) {
      const BatchShape full = BatchShape::decode(batch, context);
      EXPECT_NEAR(attention_s(costs, full), smooth_attention_s(full), 1e-12)
          << batch << ", " << context;
      for (const std::int64_t fewer : {1, 7, 15}) {
        EXPECT_EQ(attention_s(costs, BatchShape::decode(batch, context - fewer)),
                  attention_s(costs, full))
            << "every page is read as a whole";
      }
    }
  }
}

TEST(MeasuredModelTest, ShortContextsTakeAsLongAsBatchesThatThreadsShareEvenly) {
  Calibration calibration = round_calibration(smooth_attention_s);
  calibration.setup.threads = 4;
  const MeasuredModel costs(calibration, round_model());
  const auto seconds = [&](std::int64_t batch, std::int64_t context) {
    return attention_s(costs, BatchShape::decode(batch, context));
  };
  const auto smooth = [&](std::int64_t batch, std::int64_t context) {
    return smooth_attention_s(BatchShape::decode(batch, context));
  };
  // Of 4, 5 to 8 and 16: two rounds for four, where one thread has a second sequence.
  for (const std::int64_t context : {32, 256}) {
    for (const std::int64_t batch : {5, 7, 8})
      EXPECT_NEAR(seconds(batch, context), smooth(8, context), 1e-12) << batch << ", " << context;
    EXPECT_NEAR(seconds(9, context), smooth(12, context), 1e-12);
    // What was measured is not rounded, and one to four take as long.
    EXPECT_NEAR(seconds(1, context), smooth(1, context), 1e-12);
    EXPECT_NEAR(seconds(2, context), smooth(4, context), 1e-12);
  }
  // Longer ones are shared in chunks.
  EXPECT_NEAR(seconds(5, 304), smooth(5, 304), 1e-12);
  // Of another device nothing is known.
  const MeasuredModel there(accelerator_calibration(smooth_attention_s), round_model());
  EXPECT_NEAR(there.compute_s(Device::gpu, Sublayer::attention, BatchShape::decode(5, 32)),
              smooth(5, 32), 1e-12);
}

TEST(MeasuredModelTest, DecodeAttentionIsProportionalBeyondTheBuckets) {
  const MeasuredModel costs = smooth_model();
  const double last = smooth_attention_s(BatchShape::decode(16, 512));
  EXPECT_NEAR(attention_s(costs, BatchShape::decode(32, 512)), 2 * last, 1e-12);
  EXPECT_NEAR(attention_s(costs, BatchShape::decode(16, 2048)), 4 * last, 1e-12);
  EXPECT_NEAR(attention_s(costs, BatchShape::decode(32, 2048)), 8 * last, 1e-12);
  EXPECT_NEAR(attention_s(costs, BatchShape::decode(1, 1)),
              smooth_attention_s(BatchShape::decode(1, 32)), 1e-12);
}

/// What starting takes, what each row takes, and what each row takes for each row before it are
/// powers of the number of rows: 0, 1 and 2. One row is a decoding sequence.
TEST(MeasuredModelTest, PrefillAttentionIsInterpolatedOverRowsAsAPowerAndStraightOverTokensBefore) {
  for (const double power : {0.0, 1.0, 2.0}) {
    const auto attention = [&](const BatchShape& shape) {
      const auto prior = static_cast<double>(shape.context - shape.rows);
      return 1e-6 * std::pow(static_cast<double>(shape.rows), power) * (5 + prior);
    };
    const MeasuredModel costs(round_calibration(attention), round_model());
    for (const std::int64_t rows : {2, 5, 8, 20, 32, 100, 128}) {
      for (const std::int64_t prior : {0, 100, 500}) {
        if (rows < 8 && prior == 0) continue;  // nothing decodes without tokens before it
        const BatchShape shape = prefill_of(1, rows, prior).shape;
        EXPECT_NEAR(attention_s(costs, shape), attention(shape), 1e-12)
            << power << ", " << rows << ", " << prior;
      }
    }
  }
}

/// A sum of two powers that differ by 1 lies below the power through both its ends: with r times as
/// many rows there, by at most (1 + r^(1/2)) / (2 r^(1/4)), so 1.061 between 8, 32 and 128.
TEST(MeasuredModelTest, PrefillAttentionOfSeveralPartsIsNearlyAPowerOfRows) {
  const MeasuredModel costs = smooth_model();
  for (const std::int64_t rows : {8, 12, 20, 32, 48, 64, 100, 128}) {
    for (const std::int64_t prior : {0, 100, 512}) {
      const BatchShape shape = prefill_of(1, rows, prior).shape;
      const double ratio = attention_s(costs, shape) / smooth_attention_s(shape);
      EXPECT_GT(ratio, 1 - 1e-9) << rows << ", " << prior;
      const bool measured = rows == 8 || rows == 32 || rows == 128;
      EXPECT_LT(ratio, measured ? 1 + 1e-9 : 1.061) << rows << ", " << prior;
    }
  }
}

/// 64 rows were measured without tokens before alone: a row takes 4 us there, and 5 elsewhere, with
/// 1 us more for each token before.
TEST(MeasuredModelTest, MoreRowsOfPromptsWithoutTokensBeforeTellOfThoseWithSome) {
  Calibration calibration = round_calibration([](const BatchShape& shape) {
    const auto prior = static_cast<double>(shape.context - shape.rows);
    return 1e-6 * static_cast<double>(shape.rows) * (5 + prior);
  });
  CalibrationSample sample = {.rates = round_rates, .seconds = {}};
  sample.seconds.fill(64 * 4e-6);
  calibration.at(prefill_of(1, 64, 0)).samples = {sample};
  const MeasuredModel costs(calibration, round_model());
  const auto row_us = [&](std::int64_t rows, std::int64_t prior) {
    return 1e6 * attention_s(costs, prefill_of(1, rows, prior).shape) / static_cast<double>(rows);
  };
  for (const std::int64_t prior : {0, 100, 512, 2000}) {
    const auto more = static_cast<double>(prior);
    EXPECT_NEAR(row_us(64, prior), 4 + more, 1e-9) << prior;
    EXPECT_NEAR(row_us(32, prior), 5 + more, 1e-9) << prior;
    EXPECT_NEAR(row_us(128, prior), 5 + more, 1e-9) << prior;
    EXPECT_NEAR(row_us(48, prior), 5 * std::pow(4.0 / 5, std::log2(48.0 / 32)) + more, 1e-9);
  }
}

/// Two sequences take what starting takes, and twice what one does beside it.
TEST(MeasuredModelTest, PrefillAttentionIsStraightOverSequencesAndProportionalBeyond) {
  const auto attention = [](const BatchShape& shape) {
    return 1e-3 + 1e-4 * static_cast<double>(shape.batch);
  };
  Calibration calibration = round_calibration(attention);
  for (const std::int64_t rows : {8, 32, 128}) {
    for (const std::int64_t prior : {0, 512}) {
      CalibrationSample sample = {.rates = round_rates, .seconds = {}};
      sample.seconds.fill(attention(prefill_of(4, rows, prior).shape));
      calibration.at(prefill_of(4, rows, prior)).samples = {sample};
    }
  }
  const MeasuredModel costs(calibration, round_model());
  for (const std::int64_t batch : {1, 2, 3, 4}) {
    const BatchShape shape = prefill_of(batch, 20, 100).shape;
    EXPECT_NEAR(attention_s(costs, shape), attention(shape), 1e-12) << batch;
  }
  EXPECT_NEAR(attention_s(costs, prefill_of(12, 20, 100).shape), 3 * 1.4e-3, 1e-12);
}

TEST(MeasuredModelTest, PrefillAttentionGrowsWithTheKeysThatARowSeesBeyondTheBuckets) {
  const MeasuredModel costs = smooth_model();
  for (const BatchShape& far : {prefill_of(1, 1024, 0).shape, prefill_of(1, 1024, 300).shape,
                                prefill_of(1, 32, 4096).shape})
    EXPECT_NEAR(attention_s(costs, far), smooth_attention_s(far), 1e-9) << far.rows;
}

TEST(MeasuredModelTest, PrefillAttentionOfOneBucketIsProportionalToTheKeysThatARowSees) {
  const auto falling = [](const BatchShape& shape) {
    // A row takes less where there are more.
    return shape.phase == Phase::decode ? 1e-3 : 1e-3 * std::sqrt(static_cast<double>(shape.rows));
  };
  const MeasuredModel costs(round_calibration(falling), round_model());
  const double row_s = attention_s(costs, prefill_of(1, 128, 0).shape) / 128;
  EXPECT_NEAR(attention_s(costs, prefill_of(1, 1024, 0).shape) / 1024, row_s * 512.5 / 64.5, 1e-9);
}

TEST(MeasuredModelTest, PrefillAttentionOfSeveralSequencesGrowsWithMoreRowsAsOneDoes) {
  // Four sequences were measured with up to 32 rows each, one with up to 128.
  Calibration calibration = round_calibration(smooth_attention_s);
  for (const std::int64_t rows : {8, 32}) {
    for (const std::int64_t prior : {0, 512}) {
      CalibrationSample sample = {.rates = round_rates, .seconds = {}};
      sample.seconds.fill(1e-3 * static_cast<double>(4 * rows));
      sample.seconds[timed_index(Sublayer::attention)] =
          2.5 * smooth_attention_s(prefill_of(1, rows, prior).shape);
      calibration.at(prefill_of(4, rows, prior)).samples = {sample};
    }
  }
  const MeasuredModel costs(calibration, round_model());
  for (const std::int64_t rows : {32, 80, 128, 500}) {
    for (const std::int64_t prior : {0, 300}) {
      const double of_one = attention_s(costs, prefill_of(1, rows, prior).shape);
      EXPECT_NEAR(attention_s(costs, prefill_of(4, rows, prior).shape), 2.5 * of_one, 1e-9)
          << rows << ", " << prior;
    }
  }
}

TEST(MeasuredModelTest, HalvesOfAttentionAreEqual) {
  const MeasuredModel costs = smooth_model();
  const BatchShape shape = BatchShape::decode(4, 100);
  const double whole = attention_s(costs, shape);
  EXPECT_DOUBLE_EQ(costs.compute_s(Device::cpu, Sublayer::qk, shape), whole / 2);
  EXPECT_DOUBLE_EQ(costs.compute_s(Device::cpu, Sublayer::sv, shape), whole / 2);
}

TEST(MeasuredModelTest, AWindowEndsTheGrowth) {
  Calibration calibration = round_calibration(smooth_attention_s);
  calibration.model.sliding_window_tokens = 512;
  const MeasuredModel costs(calibration, calibration.model);
  EXPECT_DOUBLE_EQ(attention_s(costs, BatchShape::decode(4, 100000)),
                   attention_s(costs, BatchShape::decode(4, 512)));
  EXPECT_NEAR(attention_s(costs, prefill_of(1, 32, 100000).shape) /
                  attention_s(costs, prefill_of(1, 32, 512).shape),
              1, 1e-9);
}

TEST(MeasuredModelTest, AWindowInSomeLayersIsCountedFromMeasurementsWithoutOne) {
  const Calibration calibration = round_calibration(smooth_attention_s);
  ModelDimensions mixed = calibration.model;
  mixed.num_layers = 4;
  mixed.sliding_window_tokens = 512;
  mixed.full_attention_layers = 1;
  const MeasuredModel full(calibration, calibration.model);
  const MeasuredModel costs(calibration, mixed);
  const double far_s = attention_s(full, BatchShape::decode(4, 2048));
  const double near_s = attention_s(full, BatchShape::decode(4, 512));
  EXPECT_DOUBLE_EQ(attention_s(costs, BatchShape::decode(4, 2048)), (far_s + 3 * near_s) / 4);
  const BatchShape prompt = BatchShape::prefill(1, 1024);
  const double share = visible_keys(1024, 0, 512) / visible_keys(1024, 0, 0);
  EXPECT_DOUBLE_EQ(attention_s(costs, prompt), attention_s(full, prompt) * (1 + 3 * share) / 4);
}

TEST(MeasuredModelTest, IsNeverZeroOrInfinite) {
  const MeasuredModel costs = smooth_model();
  for (const std::int64_t batch : {std::int64_t{1}, std::int64_t{3}, std::int64_t{1} << 30}) {
    for (const std::int64_t context : {std::int64_t{1}, std::int64_t{77}, std::int64_t{1} << 30}) {
      for (const Sublayer sublayer : layer_sublayers) {
        for (const BatchShape& shape :
             {BatchShape::decode(batch, context), BatchShape::prefill(batch, context)}) {
          const double seconds = costs.compute_s(Device::cpu, sublayer, shape);
          EXPECT_TRUE(std::isfinite(seconds) && seconds > 0)
              << to_string(sublayer) << ", " << batch << ", " << context;
        }
      }
    }
  }
}

/// The same machine with half the bandwidth.
MachineRates slow_rates() {
  MachineRates rates = round_rates;
  rates.read_bandwidth_bytes_per_s /= 2;
  return rates;
}

TEST(MeasuredModelTest, SamplesAreCarriedOverToTheMedianRates) {
  Calibration calibration = round_calibration(smooth_attention_s);
  // One sample of three is at the median rates, and off; two are of a slower machine.
  for (CalibrationPoint& point : calibration.points) {
    const CalibrationSample good = point.samples.front();
    CalibrationSample slow = {.rates = slow_rates(), .seconds = {}};
    for (std::size_t i = 0; i < timed_sublayers.size(); ++i) {
      if (good.seconds[i] == 0) continue;
      const SublayerLoad load =
          timed_sublayers[i] == Sublayer::lm_head
              ? lm_head_load(calibration.model, point.batch.logit_rows)
              : sublayer_load(calibration.model, timed_sublayers[i], point.batch.shape);
      slow.seconds[i] = carried_over(good.seconds[i], load, round_rates, slow_rates());
    }
    CalibrationSample off = good;
    for (double& seconds : off.seconds) seconds *= 10;
    point.samples = {slow, off, good, good, slow};
  }
  const MeasuredModel costs(calibration, round_model());
  EXPECT_DOUBLE_EQ(costs.rates().read_bandwidth_bytes_per_s,
                   round_rates.read_bandwidth_bytes_per_s);
  const BatchShape shape = BatchShape::decode(4, 128);
  EXPECT_NEAR(costs.compute_s(Device::cpu, Sublayer::fc1, shape), 4e-3, 1e-9);
  EXPECT_NEAR(attention_s(costs, shape), smooth_attention_s(shape), 1e-9);
}

TEST(MeasuredModelTest, AtOtherRatesIsCarriedOver) {
  const MeasuredModel costs = smooth_model();
  const MeasuredModel slow = costs.at_rates(slow_rates());
  const BatchShape shape = BatchShape::decode(4, 128);
  const SublayerLoad fc1 = sublayer_load(round_model(), Sublayer::fc1, shape);
  EXPECT_NEAR(slow.compute_s(Device::cpu, Sublayer::fc1, shape), 4e-3 + fc1.bytes / 1e9, 1e-12);
  EXPECT_NEAR(slow.lm_head_s(Device::cpu, 4), 8e-3 + 128e3 / 1e9, 1e-12);
  EXPECT_DOUBLE_EQ(costs.at_rates(costs.rates()).compute_s(Device::cpu, Sublayer::fc1, shape),
                   costs.compute_s(Device::cpu, Sublayer::fc1, shape));
}

TEST(MeasuredModelTest, RepetitionsAtRatesLikeTheMomentsCountMore) {
  // A machine in two states, of which only the bandwidth tells: attention takes 5 ms more in one of
  // them than its load explains.
  Calibration calibration = round_calibration(smooth_attention_s);
  const std::size_t attention = timed_index(Sublayer::attention);
  for (CalibrationPoint& point : calibration.points) {
    const CalibrationSample fast = point.samples.front();
    CalibrationSample slow = fast;
    slow.rates = slow_rates();
    const SublayerLoad load =
        sublayer_load(calibration.model, Sublayer::attention, point.batch.shape);
    slow.seconds[attention] =
        carried_over(fast.seconds[attention], load, round_rates, slow_rates()) + 5e-3;
    point.samples = {fast, fast, fast, slow, slow};
  }
  const MeasuredModel costs(calibration, round_model());
  const BatchShape shape = BatchShape::decode(4, 128);
  const SublayerLoad load = sublayer_load(round_model(), Sublayer::attention, shape);
  const double alone_s = smooth_attention_s(shape);
  EXPECT_NEAR(attention_s(costs, shape), alone_s, 1e-9);
  EXPECT_NEAR(attention_s(costs.at_rates(slow_rates()), shape),
              carried_over(alone_s, load, round_rates, slow_rates()) + 5e-3, 1e-9);
}

TEST(MeasuredModelTest, KnowsItsMachine) {
  Calibration calibration = round_calibration(smooth_attention_s);
  calibration.links.push_back(
      {.from = Tier::ddr, .to = Tier::cxl, .points = {{1000, 1e-6}, {2000, 2e-6}}});
  const MeasuredModel costs(calibration, round_model());
  EXPECT_TRUE(costs.has(Device::cpu));
  EXPECT_FALSE(costs.has(Device::gpu));
  EXPECT_EQ(costs.capacity_bytes(Tier::ddr), std::uint64_t{1} << 34);
  EXPECT_EQ(costs.capacity_bytes(Tier::hbm), 0U);
  EXPECT_DOUBLE_EQ(costs.task_overhead_s(Device::cpu, 6), 2.5e-6);
  EXPECT_DOUBLE_EQ(costs.transfer_s(Tier::ddr, Tier::ddr, 1e9), 0);
  EXPECT_DOUBLE_EQ(costs.transfer_s(Tier::ddr, Tier::cxl, 1500), 1.5e-6);
  EXPECT_THROW(costs.transfer_s(Tier::ddr, Tier::hbm, 1), Error);
  EXPECT_THROW(costs.compute_s(Device::gpu, Sublayer::fc1, BatchShape::decode(1, 1)), Error);
  EXPECT_THROW(costs.compute_s(Device::cpu, Sublayer::sampling, BatchShape::decode(1, 1)), Error);
}

TEST(MeasuredModelTest, OfAnAcceleratorItKnowsThatAlone) {
  const MeasuredModel costs(accelerator_calibration(smooth_attention_s), round_model());
  EXPECT_EQ(costs.device(), Device::gpu);
  EXPECT_TRUE(costs.has(Device::gpu));
  EXPECT_FALSE(costs.has(Device::cpu));
  EXPECT_NEAR(costs.compute_s(Device::gpu, Sublayer::fc1, BatchShape::decode(4, 128)), 4e-3, 1e-12);
  EXPECT_THROW(costs.compute_s(Device::cpu, Sublayer::fc1, BatchShape::decode(4, 128)), Error);
  EXPECT_DOUBLE_EQ(costs.task_overhead_s(Device::gpu, 1), 200e-6);
  EXPECT_DOUBLE_EQ(costs.task_overhead_s(Device::gpu, 6), 200e-6);  // once a task
  // Between 50 us for 1000 bytes and 1 ms for 1e6.
  EXPECT_NEAR(costs.transfer_s(Tier::ddr, Tier::hbm, 500500), 525e-6, 1e-12);
  EXPECT_NEAR(costs.transfer_s(Tier::hbm, Tier::ddr, 2e6), 4e-3, 1e-12);
}

TEST(MeasuredModelTest, StoringKvIsTheMedianOfItsRows) {
  Calibration calibration = round_calibration(smooth_attention_s);
  const auto seconds = [&](const BatchShape& shape) {
    return MeasuredModel(calibration, round_model())
        .compute_s(Device::cpu, Sublayer::kv_store, shape);
  };
  EXPECT_NEAR(seconds(BatchShape::prefill(2, 16)), 32e-6, 1e-12);
  EXPECT_NEAR(seconds(BatchShape::prefill(1, 512)), 512e-6, 1e-12);
  EXPECT_NEAR(seconds(BatchShape::decode(16, 100)), 64e-6, 1e-12);
  // Measured while memory was twice as fast: 128 bytes a token, read and written, take as much
  // longer now.
  for (CalibrationKvStore& sample : calibration.kv_stores)
    sample.rates.read_bandwidth_bytes_per_s = 2e9;
  EXPECT_NEAR(seconds(BatchShape::prefill(1, 32)), 32e-6 + 32 * 128e-9, 1e-12);
  // An older file: 128 bytes a token, read and written, at 1 GB/s.
  calibration.kv_stores.clear();
  EXPECT_NEAR(seconds(BatchShape::decode(16, 100)), 2 * 16 * 128e-9, 1e-15);
}

TEST(MeasuredModelTest, ASmallPieceTakesNoLongerThanALargeOne) {
  Calibration calibration = accelerator_calibration(smooth_attention_s);
  calibration.links[0].points = {{1000, 9e-3}, {2000, 1e-3}, {3000, 2e-3}, {4000, 1.5e-3}};
  const MeasuredModel costs(calibration, round_model());
  EXPECT_DOUBLE_EQ(costs.transfer_s(Tier::ddr, Tier::hbm, 1), 1e-3);
  EXPECT_DOUBLE_EQ(costs.transfer_s(Tier::ddr, Tier::hbm, 2000), 1e-3);
  EXPECT_DOUBLE_EQ(costs.transfer_s(Tier::ddr, Tier::hbm, 2500), 1.25e-3);
  EXPECT_DOUBLE_EQ(costs.transfer_s(Tier::ddr, Tier::hbm, 3500), 1.5e-3);
  EXPECT_DOUBLE_EQ(costs.transfer_s(Tier::ddr, Tier::hbm, 8000), 3e-3);
}

TEST(MeasuredModelTest, ALinkIsTheMedianOfItsRepetitions) {
  Calibration calibration = accelerator_calibration(smooth_attention_s);
  const CalibrationLink there = calibration.links[0];
  for (const double times : {5, 2}) {
    calibration.links.push_back(there);
    for (CalibrationLink::Point& point : calibration.links.back().points) point.seconds *= times;
  }
  const MeasuredModel costs(calibration, round_model());
  EXPECT_DOUBLE_EQ(costs.transfer_s(Tier::ddr, Tier::hbm, 1000), 2 * 50e-6);
  EXPECT_DOUBLE_EQ(costs.transfer_s(Tier::ddr, Tier::hbm, 1e6), 2 * 1e-3);
  EXPECT_DOUBLE_EQ(costs.transfer_s(Tier::hbm, Tier::ddr, 1e6), 2e-3);
}

TEST(MeasuredModelTest, InterferenceIsTheMedianRatio) {
  Calibration calibration = accelerator_calibration(smooth_attention_s);
  const Interference decode = MeasuredModel(calibration, round_model()).interference(Phase::decode);
  EXPECT_DOUBLE_EQ(decode.kernels_on(Device::cpu), 2);
  EXPECT_DOUBLE_EQ(decode.link_beside(Device::cpu), 3);
  EXPECT_DOUBLE_EQ(decode.kernels_on(Device::gpu), 1);  // not measured
  EXPECT_DOUBLE_EQ(decode.link_beside(Device::gpu), 1);
  // Nothing gets faster by what runs beside it.
  for (CalibrationInterference& sample : calibration.interference) {
    sample.kernels_beside_s = 0.4;
    sample.link_beside_bytes_per_s = 7e9;
  }
  const MeasuredModel noisy(calibration, round_model());
  EXPECT_DOUBLE_EQ(noisy.interference(Phase::decode).kernels_on(Device::cpu), 1);
  EXPECT_DOUBLE_EQ(noisy.interference(Phase::decode).link_beside(Device::cpu), 1);
  EXPECT_DOUBLE_EQ(noisy.interference(Phase::prefill).kernels_on(Device::cpu), 1);
}

TEST(MeasuredModelTest, WaysThatShareALinkSlowEachOtherByTheMedianRatio) {
  Calibration calibration = accelerator_calibration(smooth_attention_s);
  EXPECT_DOUBLE_EQ(MeasuredModel(calibration, round_model()).two_way_slowdown(), 1.5);
  for (CalibrationTwoWays& sample : calibration.two_ways) sample.back_beside_bytes_per_s = 9e9;
  EXPECT_DOUBLE_EQ(MeasuredModel(calibration, round_model()).two_way_slowdown(), 1);
  calibration.two_ways.clear();
  EXPECT_DOUBLE_EQ(MeasuredModel(calibration, round_model()).two_way_slowdown(), 1);
}

TEST(MeasuredModelTest, RefusesWhatIsNotEnough) {
  const Calibration whole = round_calibration(smooth_attention_s);
  ModelDimensions other = round_model();
  other.num_layers = 40;
  EXPECT_NO_THROW(MeasuredModel(whole, other));
  other.ffn_size *= 2;
  EXPECT_THROW(MeasuredModel(whole, other), Error);
  Calibration part = whole;
  std::erase_if(part.points, [](const auto& p) { return p.batch.shape.phase == Phase::prefill; });
  EXPECT_THROW(MeasuredModel(part, round_model()), Error);
  part = whole;
  part.task_overhead_us.clear();
  EXPECT_THROW(MeasuredModel(part, round_model()), Error);
  part = whole;
  part.points.clear();
  EXPECT_THROW(MeasuredModel(part, round_model()), Error);
}

}  // namespace
}  // namespace sluice
