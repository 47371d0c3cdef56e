#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/cli_process.h"

namespace sluice::testing {

/// Prompts that differ in length, more than a batch.
struct Prompts {
  std::vector<std::string> texts = {"Once upon a time", "The dog",
                                    "A very long day in the garden was", "Lily and Tom", "In the"};
  int batch = 3;
  int max_tokens = 12;
};

/// Twelve of different lengths at once, whose KV in f32 is some MiB.
Prompts many_prompts(int max_tokens = 60);

/// Runs of the embedded model over them, with the same tokens each time.
class PromptsRunTest : public ::testing::Test {
 protected:
  explicit PromptsRunTest(const Prompts& prompts = {});

  Arguments generate(const Arguments& more = {}, const std::string& dtype = "f32") const;
  /// What the last run's --stats say.
  nlohmann::json stats() const;

  test::TemporaryFolder folder;
  std::string prompts_path = folder.file("prompts.jsonl");
  std::string stats_path = folder.file("stats.json");

 private:
  Arguments sizes_;
};

}  // namespace sluice::testing
