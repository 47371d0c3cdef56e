#include "base/environment.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace sluice {
namespace {

/// "none" if there is no such variable.
std::string value_of(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "none";
}

TEST(StarpuVariablesTest, ComeBackAsTheyWere) {
  setenv("STARPU_TEST_THERE", "before", 1);
  unsetenv("STARPU_TEST_MISSING");
  {
    StarpuVariables variables;
    variables.set("STARPU_TEST_THERE", "1");
    variables.set("STARPU_TEST_THERE", "2");
    variables.set("STARPU_TEST_MISSING", "3");
    EXPECT_EQ(value_of("STARPU_TEST_THERE"), "2");
    EXPECT_EQ(value_of("STARPU_TEST_MISSING"), "3");
  }
  EXPECT_EQ(value_of("STARPU_TEST_THERE"), "before");
  EXPECT_EQ(value_of("STARPU_TEST_MISSING"), "none");
  unsetenv("STARPU_TEST_THERE");
}

TEST(StarpuVariablesTest, ADefaultLeavesWhatTheUserHasSet) {
  setenv("STARPU_TEST_THERE", "the user's", 1);
  unsetenv("STARPU_TEST_MISSING");
  {
    StarpuVariables variables;
    variables.set_default("STARPU_TEST_THERE", "1");
    variables.set_default("STARPU_TEST_MISSING", "2");
    EXPECT_EQ(value_of("STARPU_TEST_THERE"), "the user's");
    EXPECT_EQ(value_of("STARPU_TEST_MISSING"), "2");
  }
  EXPECT_EQ(value_of("STARPU_TEST_MISSING"), "none");
  unsetenv("STARPU_TEST_THERE");
}

}  // namespace
}  // namespace sluice
