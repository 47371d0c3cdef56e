#include "base/environment.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace sluice {
namespace {

constexpr const char* there = "STARPU_TEST_THERE";
constexpr const char* missing = "STARPU_TEST_MISSING";

/// "none" if there is no such variable.
std::string value_of(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "none";
}

class StarpuVariablesTest : public testing::Test {
 protected:
  StarpuVariablesTest() {
    setenv(there, "before", 1);
    unsetenv(missing);
  }
  ~StarpuVariablesTest() override { unsetenv(there); }
};

TEST_F(StarpuVariablesTest, ComeBackAsTheyWere) {
  {
    StarpuVariables variables;
    variables.set(there, "1");
    variables.set(there, "2");
    variables.set(missing, "3");
    EXPECT_EQ(value_of(there), "2");
    EXPECT_EQ(value_of(missing), "3");
  }
  EXPECT_EQ(value_of(there), "before");
  EXPECT_EQ(value_of(missing), "none");
}

TEST_F(StarpuVariablesTest, ADefaultLeavesWhatTheUserHasSet) {
  {
    StarpuVariables variables;
    variables.set_default(there, "1");
    variables.set_default(missing, "2");
    EXPECT_EQ(value_of(there), "before");
    EXPECT_EQ(value_of(missing), "2");
  }
  EXPECT_EQ(value_of(missing), "none");
}

}  // namespace
}  // namespace sluice
