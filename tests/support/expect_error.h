#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <string_view>

#include "base/error.h"

namespace sluice::testing {

/// Passes if `action` throws Error with one line that has all these parts.
template <typename Action>
void expect_error(const Action& action, std::initializer_list<std::string_view> parts) {
  try {
    action();
    ADD_FAILURE() << "expected an Error with '" << *parts.begin() << "', nothing was thrown";
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    for (const std::string_view part : parts)
      EXPECT_NE(message.find(part), std::string::npos) << "'" << part << "' is not in: " << message;
  }
}

}  // namespace sluice::testing
