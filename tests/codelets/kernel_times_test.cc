#include "codelets/runtime/kernel_times.h"

#include <gtest/gtest.h>

#include <chrono>

namespace sluice {
namespace {

using std::chrono::milliseconds;

void add(KernelTimes& times, int kernels, milliseconds each) {
  for (int i = 0; i < kernels; ++i) times.add(Phase::decode, Sublayer::qkv, each);
}

KernelTotals::Entry entry(const KernelTotals& totals) {
  return totals.of(Phase::decode, Sublayer::qkv);
}

TEST(KernelTimesTest, AKernelThatWasHeldUpMovesTheSumAndNotTheMedian) {
  KernelTimes times;
  add(times, 2, milliseconds(1));
  add(times, 1, milliseconds(40));
  const KernelTotals::Entry of = entry(times.totals());
  EXPECT_EQ(of.count, 3);
  EXPECT_DOUBLE_EQ(of.seconds, 0.042);
  EXPECT_DOUBLE_EQ(of.median_s, 0.001);
}

TEST(KernelTimesTest, TheMedianIsOfTheLatest) {
  KernelTimes times;
  add(times, 1000, milliseconds(1));
  add(times, static_cast<int>(KernelTimes::kept / 2) + 1, milliseconds(3));
  EXPECT_DOUBLE_EQ(entry(times.totals()).median_s, 0.003);
  times.reset();
  EXPECT_DOUBLE_EQ(entry(times.totals()).median_s, 0);
  add(times, 1, milliseconds(2));
  EXPECT_DOUBLE_EQ(entry(times.totals()).median_s, 0.002);
}

TEST(KernelTimesTest, OfSeveralDomainsEachKernelCounts) {
  KernelTimes one;
  KernelTimes other;
  add(one, 3, milliseconds(1));
  add(other, 1, milliseconds(5));
  KernelTotals both = one.totals();
  both += other.totals();
  EXPECT_EQ(entry(both).count, 4);
  EXPECT_DOUBLE_EQ(entry(both).seconds, 0.008);
  EXPECT_DOUBLE_EQ(entry(both).median_s, 0.002);
}

}  // namespace
}  // namespace sluice
