// Lets a test program run on lesser vectors than the CPU's best: SLUICE_TEST_VECTORS=SSE4.
#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cstdint>
#include <cstdlib>
#include <string_view>

namespace {

class VectorTargets : public ::testing::Environment {
 public:
  void SetUp() override {
    const char* wanted = std::getenv("SLUICE_TEST_VECTORS");
    if (wanted == nullptr) return;
    for (std::int64_t bit = 1; bit > 0 && bit <= hwy::SupportedTargets(); bit <<= 1) {
      if ((hwy::SupportedTargets() & bit) == 0 || std::string_view(hwy::TargetName(bit)) != wanted)
        continue;
      hwy::DisableTargets(bit - 1);  // lower bits are better vectors
      hwy::GetChosenTarget().Update(hwy::SupportedTargets());
      return;
    }
    FAIL() << "this CPU has no " << wanted;
  }
};

const ::testing::Environment* const vector_targets =
    ::testing::AddGlobalTestEnvironment(new VectorTargets);

}  // namespace
