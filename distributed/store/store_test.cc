// Every kind of store, one behaviour and one style of errors.
#include "distributed/store/store.h"

#include <stdlib.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

#include "distributed/core/error.h"
#include "distributed/store/group_testutil.h"
#include "distributed/store/groups.h"
#include "testing/threads.h"

namespace leafpack {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);

// "tcp", "file" or "hash", and the same below a prefix.
class StoreTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    std::string kind = GetParam();
    prefixed_ = absl::StrContains(kind, "/prefix");
    if (absl::StartsWith(kind, "tcp")) {
      base_ = Store::Tcp("127.0.0.1", 0, {.serves = true, .timeout = kPatience}).value();
    } else if (absl::StartsWith(kind, "file")) {
      std::string pattern = ::testing::TempDir() + "/store_XXXXXX";
      folder_ = mkdtemp(pattern.data());
      base_ = Store::File(folder_ + "/values", kPatience).value();
    } else {
      base_ = Store::Hash(kPatience);
    }
    store_ = prefixed_ ? base_->WithPrefix("below") : *base_;
  }
  void TearDown() override {
    store_.reset();
    base_.reset();
    if (!folder_.empty()) std::filesystem::remove_all(folder_);
  }

  std::string folder_;
  bool prefixed_ = false;
  std::optional<Store> base_, store_;
};
INSTANTIATE_TEST_SUITE_P(Kinds, StoreTest,
                         ::testing::Values("tcp", "file", "hash", "tcp/prefix", "file/prefix",
                                           "hash/prefix"),
                         [](const auto& tested) {
                           std::string name = tested.param;
                           for (char& c : name) c = c == '/' ? '_' : c;
                           return name;
                         });

TEST_P(StoreTest, SetGetAddDelete) {
  Store& store = *store_;
  const std::string bytes("a\0b\xff", 4);
  for (const std::string& value : {bytes, std::string(), std::string(100000, 'x')}) {
    ASSERT_TRUE(store.Set("key", value).ok());
    EXPECT_EQ(store.Get("key").value(), value);
  }
  EXPECT_EQ(store.Add("sum", 5).value(), 5);
  EXPECT_EQ(store.Add("sum", -7).value(), -2);
  EXPECT_EQ(store.Get("sum").value(), "-2");
  EXPECT_TRUE(store.Check({"key", "sum"}).value());
  EXPECT_FALSE(store.Check({"key", "none"}).value());
  EXPECT_TRUE(store.Delete("key").value());
  EXPECT_FALSE(store.Delete("key").value());
  EXPECT_FALSE(store.Check({"key"}).value());
}

TEST_P(StoreTest, CompareSet) {
  Store& store = *store_;
  EXPECT_EQ(store.CompareSet("a", "", "one").value(), "one");
  EXPECT_EQ(store.CompareSet("a", "one", "two").value(), "two");
  EXPECT_EQ(store.CompareSet("a", "one", "three").value(), "two");
  EXPECT_EQ(store.Get("a").value(), "two");
  EXPECT_EQ(store.CompareSet("b", "expected", "x").value(), "expected");
  EXPECT_FALSE(store.Check({"b"}).value());
}

TEST_P(StoreTest, NumKeysCountsWhatIsAdded) {
  const int64_t before = store_->NumKeys().value();
  ASSERT_TRUE(store_->Set("a", "1").ok());
  ASSERT_TRUE(store_->Set("b", "1").ok());
  ASSERT_TRUE(store_->Set("b", "2").ok());
  EXPECT_EQ(store_->NumKeys().value(), before + 2);
  ASSERT_TRUE(store_->Delete("a").ok());
  EXPECT_EQ(store_->NumKeys().value(), before + 1);
}

TEST_P(StoreTest, WaitsForAnother) {
  Store other = store_->Clone().value();
  std::thread later([&] {
    absl::SleepFor(absl::Milliseconds(100));
    EXPECT_TRUE(other.Set("late", "here").ok());
  });
  EXPECT_TRUE(store_->Wait({"late"}).ok());
  later.join();
  EXPECT_EQ(store_->Get("late").value(), "here");
  EXPECT_EQ(other.timeout(), kPatience);
}

TEST_P(StoreTest, TimeoutsNameTheKeyAndTheStoreStaysUsable) {
  const absl::Status wait = store_->Wait({"none", "nil"}, absl::Milliseconds(100));
  EXPECT_EQ(wait.code(), absl::StatusCode::kDeadlineExceeded) << wait;
  EXPECT_TRUE(absl::StartsWith(wait.message(), "wait for none, nil")) << wait;
  ASSERT_TRUE(store_->set_timeout(absl::Milliseconds(100)).ok());
  EXPECT_EQ(store_->timeout(), absl::Milliseconds(100));
  const absl::Status get = store_->Get("none").status();
  EXPECT_EQ(get.code(), absl::StatusCode::kDeadlineExceeded) << get;
  EXPECT_TRUE(absl::StartsWith(get.message(), "get of 'none'")) << get;
  EXPECT_EQ(get.message().find('\n'), get.message().npos) << get;
  EXPECT_TRUE(store_->set_timeout(kPatience).ok());
  EXPECT_TRUE(store_->Set("a", "1").ok());
  EXPECT_EQ(store_->Get("a").value(), "1");
}

TEST_P(StoreTest, AddToATextIsAnErrorAndTheStoreStaysUsable) {
  ASSERT_TRUE(store_->Set("text", "words").ok());
  const absl::Status status = store_->Add("text", 1).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "'words'")) << status;
  EXPECT_EQ(store_->Get("text").value(), "words");
}

TEST_P(StoreTest, AddBeyondTheRangeIsAnErrorAndTheStoreStaysUsable) {
  const int64_t largest = std::numeric_limits<int64_t>::max();
  const int64_t smallest = std::numeric_limits<int64_t>::min();
  EXPECT_EQ(store_->Add("large", largest).value(), largest);
  EXPECT_EQ(store_->Add("small", smallest).value(), smallest);
  for (const absl::Status& status :
       {store_->Add("large", 2).status(), store_->Add("small", -2).status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "out of range")) << status;
  }
  const absl::Status status = store_->Add("large", 2).status();
  EXPECT_TRUE(absl::StrContains(status.message(), "'large'")) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "adding 2 to 9223372036854775807")) << status;
  EXPECT_EQ(store_->Get("large").value(), "9223372036854775807");
  EXPECT_EQ(store_->Add("large", -1).value(), largest - 1);
  EXPECT_EQ(store_->Add("small", 1).value(), smallest + 1);
}

TEST_P(StoreTest, BadTimeouts) {
  for (absl::Duration bad : {absl::ZeroDuration(), absl::Seconds(-1), -absl::InfiniteDuration()}) {
    EXPECT_EQ(store_->set_timeout(bad).code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(store_->Wait({"a"}, bad).code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(store_->timeout(), kPatience);
}

TEST_P(StoreTest, GroupsMeetOverIt) {
  RunRanksAsThreads(2, [&](int rank) {
    absl::StatusOr<Group> group = GroupFromStore(*store_, "g", rank, 2);
    ASSERT_TRUE(group.ok()) << group.status();
    EXPECT_EQ(FrameSum(*group, rank + 1).value(), 3);
  });
}

TEST(StoresTest, PrefixesKeepKeysApart) {
  Store base = Store::Hash();
  Store a = base.WithPrefix("a"), b = base.WithPrefix("b");
  ASSERT_TRUE(a.Set("key", "1").ok());
  ASSERT_TRUE(b.Set("key", "2").ok());
  EXPECT_EQ(a.Get("key").value(), "1");
  EXPECT_EQ(base.Get("a/key").value(), "1");
  EXPECT_EQ(b.WithPrefix("c").Add("n", 1).value(), 1);
  EXPECT_EQ(base.Get("b/c/n").value(), "1");
}

TEST(StoresTest, TcpClientsAndTheServersEnd) {
  std::optional<Store> server = Store::Tcp("127.0.0.1", 0, {.serves = true}).value();
  EXPECT_GT(server->port(), 0);
  Store client = Store::Tcp("127.0.0.1", server->port(), {}).value();
  ASSERT_TRUE(server->Set("a", "1").ok());
  EXPECT_EQ(client.Get("a").value(), "1");
  EXPECT_EQ(Store::Hash().port(), 0);
  server.reset();
  const absl::Status gone = client.Set("b", "2");
  const absl::Status read = client.Get("a").status();
  EXPECT_FALSE(read.ok());
  EXPECT_TRUE(absl::IsUnavailable(read)) << gone << " " << read;
}

TEST(StoresTest, TcpErrors) {
  EXPECT_EQ(Store::Tcp("", 80, {}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Store::Tcp("h", 0, {}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Store::Tcp("h", 65536, {}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Store::Tcp("h", 80, {.timeout = absl::ZeroDuration()}).status().code(),
            absl::StatusCode::kInvalidArgument);
  Store server = Store::Tcp("127.0.0.1", 0, {.serves = true}).value();
  const absl::Status taken =
      Store::Tcp("127.0.0.1", server.port(), {.serves = true, .timeout = absl::Seconds(2)}).status();
  EXPECT_FALSE(taken.ok());
  EXPECT_TRUE(absl::StrContains(taken.message(), absl::StrCat(":", server.port()))) << taken;
  EXPECT_EQ(Store::Wrap(nullptr).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(StoresTest, FilesThatCannotBeAreToldAtOnce) {
  for (const char* path : {"", "/nosuch/folder/file", "/tmp", "/tmp/"}) {
    const absl::Status status = Store::File(path).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), path)) << status;
  }
}

// The server is gone before the ranks have met: that is said at the deadline of a call, or once the store has
// been given up.
TEST(StoreThatDiesTest, IsNamedAsUnavailable) {
  for (const absl::Duration timeout : {absl::Seconds(3), kPatience}) {
    std::optional<Store> server = Store::Tcp("127.0.0.1", 0, {.serves = true}).value();
    const int port = server->port();
    const Store client = Store::Tcp("127.0.0.1", port, {.timeout = kPatience}).value();
    GroupOptions options;
    options.timeout = timeout;
    const absl::StatusOr<Group> group = GroupFromStore(
        timeout == kPatience ? client : client.WithPrefix("below"), "group", 1, 2, {}, options);
    ASSERT_TRUE(group.ok()) << group.status();
    server.reset();
    const absl::Time start = absl::Now();
    const absl::Status status = FrameSum(*group, 1).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), absl::StrCat("127.0.0.1:", port))) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "store")) << status;
    EXPECT_EQ(GetErrorDetails(status).kind, ErrorKind::kOther) << status;
    EXPECT_TRUE(GetErrorDetails(status).ranks.empty()) << status;
    EXPECT_LT(absl::Now() - start, absl::Seconds(50));
  }
}

}  // namespace
}  // namespace leafpack
