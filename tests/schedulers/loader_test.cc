#include "schedulers/loader.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

const std::vector<std::filesystem::path> shipped = {SLUICE_SHIPPED_DIR};

std::string fixture(const std::string& name) {
  return std::string(SLUICE_FIXTURE_DIR) + "/" + name + ".so";
}

/// The message of the error with which a policy is refused, one line.
std::string refusal(const std::string& name, const std::map<std::string, std::string>& options = {},
                    const std::vector<std::filesystem::path>& folders = shipped) {
  try {
    const LoadedPolicy policy(name, options, folders);
  } catch (const Error& error) {
    std::string message = error.what();
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    return message;
  }
  ADD_FAILURE() << name << " was loaded";
  return "";
}

void expect_parts(const std::string& message, const std::vector<std::string>& parts) {
  for (const std::string& part : parts)
    EXPECT_NE(message.find(part), std::string::npos) << "\"" << part << "\" in: " << message;
}

TEST(LoaderTest, FindsShippedPoliciesByName) {
  const std::vector<std::string> names = find_policies(shipped);
  EXPECT_NE(std::find(names.begin(), names.end(), "cpu-only"), names.end());
  EXPECT_NE(std::find(names.begin(), names.end(), "gpu-only"), names.end());
  for (const std::string& name : names) {
    const LoadedPolicy policy(name, {}, shipped);
    EXPECT_EQ(policy.name(), name);
    EXPECT_FALSE(policy.description().empty());
    EXPECT_STREQ(policy.scheduler()->policy_name, name.c_str());
  }
}

TEST(LoaderTest, ListsNoLinkToNowhere) {
  const test::TemporaryFolder folder;
  std::filesystem::create_symlink(fixture("throwing"), folder.file("there.so"));
  std::filesystem::create_symlink(folder.file("gone"), folder.file("nowhere.so"));
  std::filesystem::create_directory(folder.file("folder.so"));
  EXPECT_EQ(find_policies({folder.file("")}), std::vector<std::string>{"there"});
}

TEST(LoaderTest, FindsAPolicyByItsFile) {
  const LoadedPolicy policy(fixture("throwing"), {}, {});
  EXPECT_EQ(policy.name(), "throwing");
}

TEST(LoaderTest, EachInstanceIsItsOwn) {
  LoadedPolicy first(fixture("throwing"), {{"in", "plan_iteration"}});
  LoadedPolicy second(fixture("throwing"), {});
  EXPECT_THROW(first.policy().plan_iteration({{.id = 1}}), Error);
  EXPECT_NO_THROW(second.policy().plan_iteration({{.id = 1}}));
}

TEST(LoaderTest, NamesTheNearestForAWrongName) {
  expect_parts(refusal("gpu-onyl"), {"gpu-onyl", "no such policy", "there are gpu-only", "a file"});
  expect_parts(refusal("cpuonly"), {"there are cpu-only"});
}

TEST(LoaderTest, SaysWhereItLookedWhenThereAreNone) {
  expect_parts(refusal("lia", {}, {"/nowhere/one", "/nowhere/two"}),
               {"/nowhere/one, /nowhere/two", "SLUICE_POLICY_PATH"});
}

TEST(LoaderTest, RefusesAFileThatIsNotThere) {
  expect_parts(refusal("./nowhere.so"), {"./nowhere.so", "no such file"});
}

TEST(LoaderTest, RefusesWhatIsNoSharedObject) {
  const std::string path = testing::TempDir() + "/text.so";
  std::ofstream(path) << "this is no shared object, but long enough to have a header of its own\n";
  expect_parts(refusal(path), {"text.so", "cannot be loaded", "ELF", "sluice_add_policy"});
  std::ofstream(path).flush();
  expect_parts(refusal(path), {"cannot be loaded", "sluice_add_policy"});
  expect_parts(refusal(testing::TempDir()), {"cannot be loaded"});
}

/// dlopen() may die of it, or wait for ever.
TEST(LoaderTest, RefusesWhatIsNotWhole) {
  const std::filesystem::path whole = fixture("refuses_to_start");
  const std::string path = testing::TempDir() + "/half.so";
  std::filesystem::copy_file(whole, path, std::filesystem::copy_options::overwrite_existing);
  std::filesystem::resize_file(path, std::filesystem::file_size(whole) / 2);
  expect_parts(refusal(path), {"half.so", "cannot be loaded", "not whole"});
  const std::string pipe = testing::TempDir() + "/pipe.so";
  std::filesystem::remove(pipe);
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  expect_parts(refusal(pipe), {"pipe.so", "cannot be loaded", "not a file"});
}

TEST(LoaderTest, RefusesAnObjectWithoutDescriptor) {
  expect_parts(refusal(fixture("bare")), {"bare.so", "no symbol sluice_policy", "SLUICE_POLICY()"});
}

TEST(LoaderTest, RefusesAWrongMagic) {
  expect_parts(refusal(fixture("stray_symbol")), {"stray_symbol.so", "no policy's descriptor"});
}

TEST(LoaderTest, RefusesAnotherApiVersion) {
  expect_parts(refusal(fixture("old_api")),
               {"old_api.so", "policy API version 0",
                fmt::format("this Sluice has {}", policy_api_version), "build it"});
}

TEST(LoaderTest, RefusesAnotherStarpuFlavour) {
  expect_parts(refusal(fixture("other_flavour")),
               {"other_flavour.so", "simgrid StarPU", "native", "take its .so"});
}

TEST(LoaderTest, RefusesADescriptorWithHoles) {
  expect_parts(refusal(fixture("null_scheduler")), {"lacks", "scheduler", "SLUICE_POLICY()"});
  expect_parts(refusal(fixture("no_push")), {"scheduler", "no push_task"});
}

TEST(LoaderTest, MissesSymbolsWhileLoading) {
  expect_parts(refusal(fixture("missing_symbol")), {"cannot be loaded", "no_such_function"});
}

TEST(LoaderTest, ReportsAPolicyThatCannotBeMade) {
  expect_parts(refusal(fixture("refuses_to_start")), {"refuses-to-start", "not today"});
}

TEST(LoaderTest, RefusesOptionsThatNobodyTakes) {
  expect_parts(refusal("cpu-only", {{"depth", "3"}}), {"depth", "cpu-only", "no options"});
  expect_parts(refusal(fixture("throwing"), {{"out", "3"}}), {"out", "no such option", "in"});
  EXPECT_THROW(LoadedPolicy("cpu-only", {{"depth", "3"}}, shipped), UsageError);
}

}  // namespace
}  // namespace sluice
