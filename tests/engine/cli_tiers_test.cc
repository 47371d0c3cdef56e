// Memory tiers of the host: budgets, weights that stream from a disk, what a run would take, and
// what goes wrong with disks.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/engine/prompts_run.h"
#include "tests/support/small_disk.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::SmallDisk;
using testing::Arguments;
using testing::CliProcess;
using testing::CliResult;
using testing::content_of;
using testing::expect_failure;
using testing::lines_of;
using testing::operator+;
using testing::run_cli;
using testing::wait_for_lines;

constexpr std::uint64_t mebibyte = std::uint64_t{1} << 20;
/// With the embedded model in f32, whose weights have 12.6 MiB: everything streams.
constexpr const char* smallest = "9MiB";

class CliTiersTest : public testing::PromptsRunTest {
 protected:
  Arguments from_disk(const std::string& ddr, const Arguments& more = {}) const {
    return generate(Arguments{"--ddr", ddr, "--disk", disk.string()} + more);
  }
  std::vector<fs::path> files_on_disk() const {
    std::vector<fs::path> files;
    if (!fs::exists(disk)) return files;
    for (const auto& entry : fs::directory_iterator(disk)) files.push_back(entry.path());
    return files;
  }

  fs::path disk = folder.path() / "disk";
};

/// The budget that a refusal names, MiB; 0 when it names none.
int named_budget_mib(const std::string& text) {
  const std::size_t at = text.find("--ddr ");
  return at == std::string::npos ? 0 : std::stoi(text.substr(at + 6));
}

TEST_F(CliTiersTest, EveryBudgetIsRefusedOrGivesTheSameTokensWithinIt) {
  const CliResult expected = run_cli(generate());
  ASSERT_EQ(expected.exit_code, 0) << expected.err;
  std::set<int> least;
  std::uint64_t on_disk_before = ~std::uint64_t{0};
  int num_streamed = 0;
  for (int mib = 1; mib <= 16; ++mib) {
    const CliResult result = run_cli(from_disk(fmt::format("{}MiB", mib)));
    if (result.exit_code != 0) {
      expect_failure(result, 1, {"not enough memory", "staging", "would do"});
      least.insert(named_budget_mib(result.err));
      EXPECT_LT(mib, *least.begin()) << "refused, though it says that this would do";
      continue;
    }
    EXPECT_EQ(result.out, expected.out) << mib << " MiB";
    EXPECT_EQ(result.err, "") << mib << " MiB";
    if (!stats().contains("disk")) {
      on_disk_before = 0;
      continue;
    }
    const json used = stats().at("disk");
    const auto on_disk = used.at("weight_bytes").get<std::uint64_t>();
    EXPECT_LE(on_disk, on_disk_before) << mib << " MiB";
    on_disk_before = on_disk;
    EXPECT_GE(used.at("read_bytes").get<std::uint64_t>(), on_disk) << mib << " MiB";
    EXPECT_LE(used.at("peak_staged_bytes").get<std::uint64_t>(),
              used.at("staging_limit_bytes").get<std::uint64_t>())
        << mib << " MiB";
    // StarPU keeps to whole MiB: what the look-ahead brings must find a place in those.
    EXPECT_LE(used.at("window_bytes").get<std::uint64_t>(),
              used.at("staging_limit_bytes").get<std::uint64_t>() / mebibyte * mebibyte)
        << mib << " MiB";
    EXPECT_LE(used.at("staging_limit_bytes").get<std::uint64_t>() +
                  (std::uint64_t{12} * mebibyte - std::min(on_disk, 12 * mebibyte)),
              static_cast<std::uint64_t>(mib) * mebibyte)
        << "what streams and what stays are more than " << mib << " MiB";
    ++num_streamed;
  }
  ASSERT_EQ(least.size(), 1U) << "refusals that do not agree";
  EXPECT_GT(*least.begin(), 2);
  EXPECT_GE(num_streamed, 4);
  EXPECT_EQ(on_disk_before, 0U) << "the largest budget still streams";
  EXPECT_EQ(files_on_disk().size(), 1U);
}

TEST_F(CliTiersTest, EveryFormOfTheGraphGivesTheSameTokens) {
  for (const Arguments& form : {Arguments{"--no-fuse"}, Arguments{"--attention", "split"},
                                Arguments{"--cpu-plan", "static"}, Arguments{"--policy", "lia"},
                                Arguments{"--policy", "neo"}, Arguments{"--policy", "flexgen"},
                                Arguments{"--dtype", "bf16"}}) {
    const bool is_dtype = form.front() == "--dtype";
    const Arguments plain = is_dtype ? generate({}, form[1]) : generate(form);
    const CliResult expected = run_cli(plain);
    ASSERT_EQ(expected.exit_code, 0) << expected.err;
    const std::string ddr = is_dtype ? "7MiB" : "10MiB";
    const CliResult result = run_cli(plain + Arguments{"--ddr", ddr, "--disk", disk.string()});
    ASSERT_EQ(result.exit_code, 0) << form.back() << result.err;
    EXPECT_EQ(result.out, expected.out) << form.back();
    EXPECT_TRUE(stats().contains("disk")) << form.back();
  }
}

TEST_F(CliTiersTest, LayersThatComeFromTheDiskAreTasksOfTheirOwn) {
  const auto tasks_within = [&](const std::string& ddr) -> std::int64_t {
    const std::string trace = folder.file("trace-" + ddr);
    const CliResult result =
        run_cli({"generate", "--prompt", "Once upon a time", "--max-tokens", "12", "--temperature",
                 "0", "-q", "--dtype", "f32", "--policy", "cpu-only", "--ddr", ddr, "--disk",
                 disk.string(), "--trace", trace});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return json::parse(run_cli({"trace", trace, "--json"}).out).at("tasks");
  };
  // Of 12 iterations: 6 layers, embedding, head, sampling. In the prompt's the last layer is two
  // tasks, and two more drop rows between them.
  EXPECT_EQ(tasks_within(smallest), 12 * 9 + 3);
  // In DDR all layers are one task; in the prompt's iteration all but the last.
  EXPECT_EQ(tasks_within("40MiB"), 12 * 4 + 4);
}

TEST_F(CliTiersTest, AModelLargerThanItsBudgetStaysWithinItsMemory) {
  const std::string model = folder.file("model");
  ASSERT_EQ(run_cli({"make-model", "--shape", "opt-125m", "--out", model}).exit_code, 0);
  std::ofstream(folder.file("ids.jsonl"))
      << R"({"prompt_token_ids": [2, 5, 7, 100, 3000]})" << '\n';
  const Arguments run = {
      "generate", "--model", model,           "--prompts", folder.file("ids.jsonl"),
      "--dtype",  "bf16",    "--temperature", "0",         "--max-tokens",
      "8",        "-q",      "--stats",       stats_path};
  const CliResult tiny =
      run_cli({"generate", "--prompt", "x", "--max-tokens", "2", "-q", "--stats", stats_path});
  ASSERT_EQ(tiny.exit_code, 0) << tiny.err;
  const auto peak = [this] { return stats().at("peak_bytes").at("ddr").get<std::uint64_t>(); };
  const std::uint64_t program_bytes = peak();
  const CliResult expected = run_cli(run);
  ASSERT_EQ(expected.exit_code, 0) << expected.err;
  EXPECT_GT(peak(), 300 * mebibyte) << "too little for this test to show anything";
  for (int pass = 0; pass < 2; ++pass) {  // packs the file, then finds it
    const CliResult result = run_cli(run + Arguments{"--ddr", "200MiB", "--disk", disk.string()});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.out, expected.out);
    EXPECT_LT(peak(), 200 * mebibyte + program_bytes) << "pass " << pass;
    EXPECT_GT(stats().at("disk").at("weight_bytes").get<std::uint64_t>(), 60 * mebibyte);
  }
}

TEST_F(CliTiersTest, AWholeFileIsReusedWithAnyBudgetAndADamagedOneIsNot) {
  const CliResult expected = run_cli(from_disk(smallest));
  ASSERT_EQ(expected.exit_code, 0) << expected.err;
  ASSERT_EQ(files_on_disk().size(), 1U);
  const fs::path file = files_on_disk().front();
  const auto written = fs::last_write_time(file);
  for (const char* ddr : {smallest, "11MiB"}) {
    const CliResult again = run_cli(from_disk(ddr));
    EXPECT_EQ(again.out, expected.out) << ddr << again.err;
    EXPECT_EQ(fs::last_write_time(file), written) << ddr;
  }
  const std::string content = content_of(file);
  for (const bool cut : {true, false}) {
    std::string damaged = content;
    if (cut) {
      damaged.resize(damaged.size() - 1);
    } else {
      damaged[30] ^= 1;  // of the header
    }
    std::ofstream(file, std::ios::binary) << damaged;
    const CliResult again = run_cli(from_disk(smallest));
    EXPECT_EQ(again.out, expected.out) << again.err;
    EXPECT_TRUE(content_of(file) == content) << "not packed anew, cut: " << cut;
  }
}

TEST_F(CliTiersTest, TheFileIsForTheUserAloneWhateverTheUmask) {
  const CliResult result = CliProcess("/bin/sh", Arguments{"-c", "umask 000; exec \"$@\"", "sh",
                                                           testing::sluice_program()} +
                                                     from_disk(smallest))
                               .wait();
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(fs::status(disk).permissions(), fs::perms::owner_all);
  ASSERT_EQ(files_on_disk().size(), 1U);
  EXPECT_EQ(fs::status(files_on_disk().front()).permissions(),
            fs::perms::owner_read | fs::perms::owner_write);
}

TEST_F(CliTiersTest, AnotherModelHasAnotherFile) {
  ASSERT_EQ(run_cli(from_disk(smallest)).exit_code, 0);
  const fs::path model = folder.path() / "other" / "tiny";
  fs::create_directories(model.parent_path());
  ASSERT_EQ(run_cli({"make-model", "--shape", "opt-125m", "--out", model.string()}).exit_code, 0);
  const auto bench = [&](int ddr_mib) {
    return run_cli({"bench", "--model", model.string(), "--gen-tokens", "1", "--prompt-tokens", "0",
                    "--repeat", "1", "--no-warmup", "--dtype", "bf16", "--disk", disk.string(),
                    "--ddr", fmt::format("{}MiB", ddr_mib)});
  };
  // What the probes take depends on the machine's caches.
  const CliResult result = bench(named_budget_mib(bench(1).err));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(files_on_disk().size(), 2U) << "the same name is not the same model";
}

TEST_F(CliTiersTest, TwoRunsAtOnceDoNotHarmEachOther) {
  const CliResult expected = run_cli(generate());
  CliProcess first(from_disk(smallest));
  CliProcess second(from_disk(smallest));
  for (CliProcess* process : {&first, &second}) {
    const CliResult result = process->wait();
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.out, expected.out);
  }
  EXPECT_EQ(files_on_disk().size(), 1U);
}

TEST_F(CliTiersTest, WhatAKilledRunLeftIsRemoved) {
  ASSERT_EQ(run_cli(from_disk(smallest)).exit_code, 0);
  const fs::path file = files_on_disk().front();
  fs::rename(file, file.string() + ".partial-1");
  std::ofstream(disk / "mine.txt") << "not Sluice's";
  ASSERT_EQ(run_cli(from_disk(smallest)).exit_code, 0);
  EXPECT_TRUE(fs::exists(file));
  EXPECT_TRUE(fs::exists(disk / "mine.txt"));
  EXPECT_EQ(files_on_disk().size(), 2U);
}

/// Enough prompts for a run that lasts until something happens to its disk.
class CliDiskFaultTest : public CliTiersTest {
 protected:
  CliDiskFaultTest() {
    std::ofstream file(prompts_path);
    for (int i = 0; i < 400; ++i)
      file << json{{"prompt", fmt::format("Story number {} begins", i)}}.dump() << '\n';
  }
  Arguments long_run() const { return from_disk(smallest, {"--output", output}); }
  std::string output = folder.file("out.jsonl");
};

TEST_F(CliDiskFaultTest, AReadErrorIsOneLineAndFinishedOutputsAreKept) {
  CliProcess process(long_run());
  wait_for_lines(output, 3);
  ASSERT_EQ(files_on_disk().size(), 1U);
  const fs::path file = files_on_disk().front();
  ASSERT_EQ(truncate(file.c_str(), static_cast<off_t>(mebibyte)), 0);
  expect_failure(process.wait(), 1, {file.string(), "cut short"});
  const std::size_t kept = lines_of(content_of(output)).size();
  EXPECT_GE(kept, 3U);
  EXPECT_LT(kept, 400U);
}

TEST_F(CliDiskFaultTest, AFileThatVanishesIsReadOn) {
  CliProcess process(long_run());
  wait_for_lines(output, 3);
  fs::remove_all(disk);
  process.send(SIGINT);
  const CliResult result = process.wait();
  EXPECT_EQ(result.exit_code, 130) << result.err;
  EXPECT_GE(lines_of(content_of(output)).size(), 3U);
}

TEST_F(CliTiersTest, AFullDiskIsOneLineAndLeavesNothing) {
  for (const rlim_t bytes : {rlim_t{32 * 1024}, static_cast<rlim_t>(3 * mebibyte)}) {
    const SmallDisk small(bytes);
    expect_failure(run_cli(from_disk(smallest)), 1, {disk.string(), "cannot be written"});
    EXPECT_TRUE(files_on_disk().empty());
  }
  EXPECT_EQ(run_cli(from_disk(smallest)).exit_code, 0);
}

TEST_F(CliTiersTest, AFolderThatCannotBeIsOneLine) {
  folder.write("file", "x");
  const Arguments run = generate({"--ddr", smallest, "--disk", folder.file("file") + "/below"});
  expect_failure(run_cli(run), 1, {"--disk " + folder.file("file"), "cannot be made"});
}

TEST_F(CliTiersTest, ARunWithoutADiskIsToldOfOne) {
  expect_failure(run_cli(generate({"--ddr", "10MiB"})), 1, {"not enough memory", "--disk DIR"});
}

TEST_F(CliTiersTest, ADryRunSeesThatTheDiskIsTooSmall) {
  const std::string small = "/dev/shm/sluice-too-small";
  if (fs::space("/dev/shm").available > 650 * 1024 * mebibyte) GTEST_SKIP() << "has all that room";
  const CliResult result = run_cli({"bench", "--model", "opt-175b", "--dtype", "f32", "--ddr",
                                    "64GiB", "--disk", small, "--dry-run"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(lines_of(result.out).size(), 3U) << "no table: " << result.out;
  EXPECT_NE(result.err.find("--disk " + small + ": the file of all packed weights"),
            std::string::npos)
      << result.err;
  EXPECT_EQ(lines_of(result.err).size(), 1U) << result.err;
  EXPECT_FALSE(fs::exists(small));
}

TEST_F(CliTiersTest, NamesWhatDoesNotGoTogether) {
  expect_failure(run_cli(generate({"--json"})), 2, {"--json", "--dry-run"});
  expect_failure(run_cli(generate({"--disk", ""})), 2, {"--disk", "folder"});
}

TEST_F(CliTiersTest, ADryRunAddsUpAndDoesNothing) {
  const CliResult table = run_cli(from_disk("10MiB", {"--dry-run"}));
  ASSERT_EQ(table.exit_code, 0) << table.err;
  ASSERT_EQ(lines_of(table.out).size(), 3U) << table.out;
  EXPECT_EQ(table.out.rfind("tier", 0), 0U);
  const CliResult result = run_cli(from_disk("10MiB", {"--dry-run", "--json"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json tiers = json::parse(result.out).at("tiers");
  ASSERT_EQ(tiers.size(), 2U);
  EXPECT_EQ(tiers[0].at("tier"), "ddr");
  EXPECT_EQ(tiers[1].at("tier"), "disk");
  EXPECT_EQ(tiers[0].at("available_bytes"), 10 * mebibyte);
  std::uint64_t sum = 0;
  for (const char* part :
       {"weight_bytes", "kv_bytes", "activation_bytes", "staging_bytes", "workspace_bytes"})
    sum += tiers[0].at(part).get<std::uint64_t>();
  EXPECT_EQ(tiers[0].at("total_bytes"), sum);
  EXPECT_LE(sum, 10 * mebibyte);
  const CliResult all = run_cli(generate({"--dry-run", "--json"}));
  const json without = json::parse(all.out).at("tiers");
  EXPECT_EQ(without[0].at("weight_bytes").get<std::uint64_t>(),
            tiers[0].at("weight_bytes").get<std::uint64_t>() +
                tiers[1].at("weight_bytes").get<std::uint64_t>());
  EXPECT_TRUE(files_on_disk().empty());
  EXPECT_FALSE(fs::exists(stats_path));
  expect_failure(run_cli(from_disk("1MiB", {"--dry-run"})), 1, {"not enough memory"});
}

/// Many prompts at once, whose hidden states are most of what a run takes.
class CliManyPromptsTest : public testing::PromptsRunTest {
 protected:
  static testing::Prompts prompts() {
    testing::Prompts many{.texts = {}, .batch = 150, .max_tokens = 2};
    for (int i = 0; i < many.batch; ++i) {
      std::string& text = many.texts.emplace_back();
      for (int word = 0; word < 220 + i % 7; ++word) text += fmt::format(" {}", (i * word) % 10);
    }
    return many;
  }
  CliManyPromptsTest() : PromptsRunTest(prompts()) {}

  json ddr(const Arguments& more) const {
    const CliResult result = run_cli(generate(Arguments{"--dry-run", "--json"} + more));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return json::parse(result.out).at("tiers").at(0);
  }
};

TEST_F(CliManyPromptsTest, TakeNoMoreThanIsReckonedAndKernelsWhatAPartOfThemTakes) {
  // The program, its libraries and StarPU's tables (docs/guide/tiers.md).
  constexpr std::uint64_t program = 256 * mebibyte;
  for (const Arguments& more : {Arguments{}, Arguments{"--no-fuse"}}) {
    SCOPED_TRACE(more.empty() ? "" : more.front());
    const json reckoned = ddr(more);
    const CliResult result = run_cli(generate(more));
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const auto rows = stats().at("prompt_tokens").get<std::uint64_t>();
    ASSERT_GT(rows, 30'000U);
    EXPECT_LE(stats().at("peak_bytes").at("ddr").get<std::uint64_t>(),
              reckoned.at("total_bytes").get<std::uint64_t>() + program);
    // Not even a hidden state for each row.
    EXPECT_LT(reckoned.at("workspace_bytes").get<std::uint64_t>(), rows * 256 * 4 * 2);
  }
}

TEST_F(CliTiersTest, EmulatedCxlHoldsTheLayersAndSaysThatItIsEmulated) {
  const CliResult expected = run_cli(generate());
  const Arguments emulated = {"--cxl-nodes", "emulate:1"};
  for (const char* policy : {"cpu-only", "lia", "flexgen"}) {
    const CliResult result = run_cli(generate(emulated + Arguments{"--policy", policy}));
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.out, expected.out) << policy;
  }
  const json cxl = stats().at("cxl");
  EXPECT_TRUE(cxl.at("emulated").get<bool>());
  EXPECT_GT(cxl.at("weight_bytes").get<std::uint64_t>(), 10 * mebibyte);
  const CliResult dry = run_cli(generate(emulated + Arguments{"--dry-run", "--json"}));
  ASSERT_EQ(dry.exit_code, 0) << dry.err;
  const json tiers = json::parse(dry.out).at("tiers");
  ASSERT_EQ(tiers.size(), 2U);
  EXPECT_EQ(tiers[1].at("tier"), "cxl");
  EXPECT_EQ(tiers[1].at("where"), "emulated in ddr");
  EXPECT_EQ(tiers[1].at("weight_bytes"), cxl.at("weight_bytes"));
  EXPECT_EQ(tiers[1].at("kv_bytes"), 0) << "KV stays in DDR";
  EXPECT_EQ(tiers[1].at("available_bytes"), 1024 * mebibyte);
  const CliResult told =
      run_cli({"generate", "--prompt", "x", "--max-tokens", "2", "--cxl-nodes", "emulate:1"});
  EXPECT_NE(told.err.find("emulated: they lie in DDR"), std::string::npos) << told.err;
}

/// Layers of 1.75 MiB: CXL memory is filled first, DDR next, and the disk has the rest.
TEST_F(CliTiersTest, CxlMemoryAndADiskHoldTheSameModelTogether) {
  const CliResult expected = run_cli(generate());
  constexpr std::uint64_t layer = mebibyte * 7 / 4;
  std::uint64_t least_on_disk = 6 * layer;
  for (const int cxl_mib : {1, 2, 4, 6, 9, 11}) {
    const std::uint64_t in_cxl = cxl_mib * mebibyte / layer * layer;
    std::uint64_t before = ~std::uint64_t{0};  // with less DDR
    for (const char* ddr : {"6MiB", "9MiB", "11MiB"}) {
      const Arguments both = {"--cxl-nodes", fmt::format("emulate:{}MiB", cxl_mib)};
      const CliResult result = run_cli(from_disk(ddr, both));
      if (result.exit_code != 0) {
        expect_failure(result, 1, {"not enough memory", "would do"});
        EXPECT_GT(named_budget_mib(result.err), std::stoi(ddr));
        continue;
      }
      const std::string what = fmt::format("{} MiB of CXL, DDR {}", cxl_mib, ddr);
      EXPECT_EQ(result.out, expected.out) << what;
      EXPECT_EQ(stats().at("cxl").at("weight_bytes"), in_cxl) << what;
      const json used = stats().contains("disk") ? stats().at("disk") : json();
      const std::uint64_t on_disk =
          used.is_null() ? 0 : used.at("weight_bytes").get<std::uint64_t>();
      EXPECT_LE(on_disk, before) << what;
      before = on_disk;
      const std::uint64_t beside_layers = on_disk % layer;  // nothing, or the LM head of 2 MiB
      EXPECT_TRUE(beside_layers == 0 || beside_layers == 2 * mebibyte - layer) << what;
      least_on_disk = std::min(least_on_disk, on_disk);
      if (used.is_null()) continue;
      EXPECT_LE(used.at("peak_staged_bytes").get<std::uint64_t>(),
                used.at("staging_limit_bytes").get<std::uint64_t>())
          << what;
    }
  }
  EXPECT_EQ(least_on_disk, 0U) << "no budget was enough for all in memory";
  const CliResult all = run_cli(from_disk("6MiB", {"--cxl-nodes", "emulate:1"}));
  ASSERT_EQ(all.exit_code, 0) << all.err;
  EXPECT_EQ(all.out, expected.out);
  EXPECT_FALSE(stats().contains("disk")) << "CXL memory has room for all";
  const CliResult dry =
      run_cli(from_disk("9MiB", {"--cxl-nodes", "emulate:4MiB", "--dry-run", "--json"}));
  ASSERT_EQ(dry.exit_code, 0) << dry.err;
  const json tiers = json::parse(dry.out).at("tiers");
  ASSERT_EQ(tiers.size(), 3U);
  EXPECT_EQ(tiers[1].at("tier"), "cxl");
  EXPECT_EQ(tiers[1].at("weight_bytes"), 2 * layer);
  EXPECT_EQ(tiers[2].at("tier"), "disk");
}

TEST_F(CliTiersTest, KvLivesInCxlMemoryWhenAskedFor) {
  const CliResult expected = run_cli(generate());
  const Arguments cxl = {"--cxl-nodes", "emulate:1", "--kv-tier"};
  const auto tiers = [&](const char* kv_tier) {
    const CliResult dry = run_cli(generate(cxl + Arguments{kv_tier, "--dry-run", "--json"}));
    EXPECT_EQ(dry.exit_code, 0) << dry.err;
    return json::parse(dry.out).at("tiers");
  };
  const json in_ddr = tiers("ddr");
  const json in_cxl = tiers("cxl");
  EXPECT_GT(in_ddr[0].at("kv_bytes"), 0);
  EXPECT_EQ(in_ddr[1].at("kv_bytes"), 0);
  EXPECT_EQ(in_cxl[0].at("kv_bytes"), 0);
  EXPECT_EQ(in_cxl[1].at("kv_bytes"), in_ddr[0].at("kv_bytes"));
  for (const Arguments& form : {Arguments{}, Arguments{"--attention", "split"}}) {
    const CliResult result = run_cli(generate(cxl + Arguments{"cxl"} + form));
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.out, expected.out);
    // Weights alone: a task reads some pages of KV.
    const json used = stats();
    EXPECT_EQ(used.at("cxl").at("read_bytes").get<std::uint64_t>(),
              used.at("iterations").get<std::uint64_t>() *
                  used.at("cxl").at("weight_bytes").get<std::uint64_t>());
  }
  // KV has the first claim: the layers that it leaves no room for go to the disk.
  const std::uint64_t kv_mib = in_ddr[0].at("kv_bytes").get<std::uint64_t>() / mebibyte + 1;
  const CliResult tight = run_cli(from_disk(
      "9MiB", {"--cxl-nodes", fmt::format("emulate:{}MiB", kv_mib + 2), "--kv-tier", "cxl"}));
  ASSERT_EQ(tight.exit_code, 0) << tight.err;
  EXPECT_EQ(tight.out, expected.out);
  EXPECT_EQ(stats().at("cxl").at("weight_bytes"), mebibyte * 7 / 4);
  expect_failure(run_cli(generate({"--kv-tier", "cxl"})), 2, {"--kv-tier cxl", "--cxl-nodes"});
  expect_failure(run_cli(generate({"--kv-tier", "hbm"})), 2,
                 {"--kv-tier hbm: expected ddr, cxl or disk"});
  expect_failure(
      run_cli({"bench", "--model", "llama-3.1-8b", "--dtype", "bf16", "--batch", "64", "--depth",
               "2048", "--cxl-nodes", "emulate:1", "--kv-tier", "cxl", "--dry-run"}),
      1, {"not enough CXL memory", "leave out --kv-tier cxl", "a smaller --batch"});
}

TEST_F(CliTiersTest, KvLivesOnADiskWhenAskedFor) {
  const CliResult expected = run_cli(generate());
  const Arguments on_disk = {"--disk", disk.string(), "--kv-tier", "disk"};
  const CliResult dry = run_cli(generate(on_disk + Arguments{"--dry-run", "--json"}));
  ASSERT_EQ(dry.exit_code, 0) << dry.err;
  const json tiers = json::parse(dry.out).at("tiers");
  ASSERT_EQ(tiers.size(), 2U);
  EXPECT_EQ(tiers[0].at("kv_bytes"), 0);
  EXPECT_EQ(tiers[1].at("weight_bytes"), 0);
  const auto kv_bytes = tiers[1].at("kv_bytes").get<std::uint64_t>();
  for (const Arguments& form :
       {Arguments{}, Arguments{"--attention", "split"}, Arguments{"--no-fuse"}}) {
    const CliResult result = run_cli(generate(on_disk + form));
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.out, expected.out);
    EXPECT_TRUE(files_on_disk().empty()) << "KV is nobody's afterwards";
    const json used = stats().at("disk");
    EXPECT_EQ(used.at("weight_bytes"), 0);
    EXPECT_EQ(used.at("kv_bytes"), kv_bytes);
    // All of it for each iteration that has cached tokens, but the first; besides, whoever writes
    // reads at most what it writes.
    const auto iterations = stats().at("iterations").get<std::uint64_t>();
    const auto written = used.at("written_bytes").get<std::uint64_t>();
    EXPECT_GE(used.at("read_bytes").get<std::uint64_t>(), (iterations - 1) * kv_bytes);
    EXPECT_LE(used.at("read_bytes").get<std::uint64_t>(), (iterations - 1) * kv_bytes + written);
  }
  // More of it than DDR ever holds: it is given up once it was read.
  const auto longer = [&](const Arguments& more) {
    return run_cli(Arguments{"generate", "--prompt", "Once", "--max-tokens", "180", "--dtype",
                             "f32", "--ignore-eos", "--temperature", "0", "--stats", stats_path} +
                   more);
  };
  const CliResult in_ddr = longer({});
  for (const Arguments& form : {Arguments{}, Arguments{"--attention", "split"}}) {
    const CliResult result = longer(on_disk + form);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.out, in_ddr.out);
    const std::string summary = result.err.substr(result.err.find("disk " + disk.string()));
    EXPECT_LT(summary.find(" of KV, "), summary.find('\n')) << summary;
    EXPECT_GT(summary.find(" of weights"), summary.find('\n')) << "none live there";
    const json used = stats().at("disk");
    EXPECT_LT(used.at("peak_staged_bytes").get<std::uint64_t>(),
              used.at("kv_bytes").get<std::uint64_t>() * 3 / 4);
    EXPECT_GE(used.at("kv_bytes").get<std::uint64_t>(), 6 * 64 * 1024U) << "slabs are looked ahead";
  }
  // Weights and KV, both.
  const CliResult both = run_cli(from_disk(smallest, {"--kv-tier", "disk"}));
  ASSERT_EQ(both.exit_code, 0) << both.err;
  EXPECT_EQ(both.out, expected.out);
  EXPECT_GT(stats().at("disk").at("weight_bytes"), 0);
  EXPECT_EQ(stats().at("disk").at("kv_bytes"), kv_bytes);
  EXPECT_EQ(files_on_disk().size(), 1U);
}

TEST_F(CliTiersTest, ARefusalSaysWhenKvOnADiskWouldDo) {
  const auto plan = [&](const char* ddr, const Arguments& more) {
    return run_cli(Arguments{"bench", "--model", "llama-3.2-1b", "--dtype", "bf16", "--batch", "64",
                             "--depth", "2048", "--dry-run", "--ddr", ddr} +
                   more);
  };
  const Arguments on_disk = {"--disk", disk.string(), "--kv-tier", "disk"};
  expect_failure(plan("4GiB", {}), 1, {"--disk DIR --kv-tier disk would keep KV on a disk"});
  expect_failure(plan("4GiB", {"--disk", disk.string()}), 1, {"or: --kv-tier disk would keep KV"});
  EXPECT_EQ(plan("4GiB", on_disk).exit_code, 0);
  const CliResult little = plan("1GiB", {"--disk", disk.string()});
  EXPECT_EQ(little.err.find("--kv-tier disk would"), std::string::npos) << little.err;
  EXPECT_EQ(plan("1GiB", on_disk).exit_code, 1);
}

TEST_F(CliTiersTest, ADiskWithoutRoomForKvIsRefusedBeforeLoading) {
  {
    const SmallDisk full(64 * 1024);
    expect_failure(run_cli(generate({"--disk", disk.string(), "--kv-tier", "disk"})), 1,
                   {disk.string(), "no room", "KV takes", "choose another folder"});
  }
  EXPECT_TRUE(files_on_disk().empty());
  expect_failure(run_cli(generate({"--disk", "/proc/nowhere", "--kv-tier", "disk"})), 1,
                 {"/proc/nowhere", "no file can be made there"});
  expect_failure(run_cli(generate({"--kv-tier", "disk"})), 2, {"--kv-tier disk", "--disk"});
}

TEST_F(CliTiersTest, CxlNodesThatAreNoneAreOneLine) {
  expect_failure(run_cli(generate({"--cxl-nodes", "913"})), 1, {"no NUMA node 913"});
  expect_failure(run_cli(generate({"--cxl-nodes", "0"})), 1, {"node 0 has processors", "emulate"});
  for (const char* text :
       {"", "x", "2,", "2,,3", "2,3,2", "-1", "emulate:", "emulate:0", "emulate:x", "emulate:-1GiB",
        "emulate:0MiB", "emulate: 1", "emulate:1e"})
    expect_failure(run_cli(generate({"--cxl-nodes", text})), 2, {"--cxl-nodes", "emulate:16"});
  expect_failure(run_cli(generate({"--cxl-nodes", "emulate:1", "--ddr", "2MiB"})), 1,
                 {"not enough memory", "MiB would do"});
  expect_failure(run_cli({"bench", "--model", "llama-3.1-8b", "--dtype", "bf16", "--cxl-nodes",
                          "emulate:1", "--dry-run"}),
                 1, {"not enough CXL memory", "1.00 GiB available", "would do"});
  const CliResult half = run_cli(generate({"--cxl-nodes", "emulate:0.5", "--dry-run", "--json"}));
  EXPECT_EQ(json::parse(half.out).at("tiers").at(1).at("available_bytes"), 512 * mebibyte);
  // Emulated, it is DDR's: both together are not more than there is. Layers of 2.25 GiB.
  const auto left_of_ddr = [](const Arguments& more) {
    const CliResult result =
        run_cli(Arguments{"bench", "--model", "opt-1.3b", "--dtype", "bf16", "--device", "cpu",
                          "--gen-tokens", "1", "--prompt-tokens", "0", "--dry-run", "--json"} +
                more);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return json::parse(result.out).at("tiers").at(0).at("available_bytes").get<double>();
  };
  EXPECT_NEAR(left_of_ddr({}) - left_of_ddr({"--cxl-nodes", "emulate:4"}), 2304.0 * mebibyte,
              512 * mebibyte);
}

/// Its weights have 326 GiB.
TEST_F(CliTiersTest, AModelLargerThanTheMachinesMemoryRunsFromADisk) {
  const Arguments large = {"bench", "--model",      "opt-175b", "--prompt-tokens",
                           "0",     "--gen-tokens", "1",        "--ddr",
                           "16GiB", "--dry-run",    "--json"};
  for (const Arguments& device :
       {Arguments{"--device", "cpu"}, Arguments{"--device", "standin:12GiB"},
        Arguments{"--device", "standin:12GiB", "--policy", "lia"}}) {
    expect_failure(run_cli(large + device), 1, {"not enough memory", "--disk DIR"});
    const CliResult result = run_cli(large + device + Arguments{"--disk", disk.string()});
    const bool has_room = fs::space(folder.path()).available > 326 * 1024 * mebibyte;
    ASSERT_EQ(result.exit_code, has_room ? 0 : 1) << result.err;
    const json tiers = json::parse(result.out).at("tiers");
    EXPECT_EQ(tiers.back().at("tier"), "disk");
    EXPECT_GT(tiers.back().at("weight_bytes").get<std::uint64_t>(), 300 * 1024 * mebibyte);
  }
}

TEST_F(CliTiersTest, ADryRunOfABenchmarkDoes) {
  const CliResult result = run_cli({"bench", "--model", "opt-125m", "--dry-run", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_GT(json::parse(result.out).at("tiers")[0].at("weight_bytes").get<std::uint64_t>(),
            200 * mebibyte);
}

TEST_F(CliTiersTest, ADryRunCountsKvOnItsWayAlsoWhereSomeLayersKvStays) {
  const CliResult result = run_cli({"bench",
                                    "--model",
                                    "opt-125m",
                                    "--dtype",
                                    "f32",
                                    "--device",
                                    "standin:1280MiB",
                                    "--policy",
                                    "lia",
                                    "--policy-option",
                                    "prefill=000000",
                                    "--policy-option",
                                    "decode=000000",
                                    "--prompt-tokens",
                                    "0",
                                    "--gen-tokens",
                                    "8",
                                    "--depth",
                                    "512",
                                    "--batch",
                                    "32",
                                    "--dry-run",
                                    "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json hbm = json::parse(result.out).at("tiers")[0];
  ASSERT_EQ(hbm.at("tier"), "hbm");
  // 33 pages of 16 tokens each, K and V of 768 floats: one layer's.
  constexpr std::uint64_t slab_bytes = 32ULL * 33 * 16 * 2 * 768 * 4;
  const auto kv_bytes = hbm.at("kv_bytes").get<std::uint64_t>();
  EXPECT_EQ(kv_bytes % slab_bytes, 0U);
  EXPECT_GT(kv_bytes, 0U);
  EXPECT_LT(kv_bytes, 12 * slab_bytes);
  EXPECT_GE(hbm.at("staging_bytes").get<std::uint64_t>(), 2 * slab_bytes);
}

}  // namespace
}  // namespace sluice
