#include "distributed/core/channel/c10d_key_value_store.h"

#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"

#include "distributed/core/channel/channel_testutil.h"
#include "distributed/core/channel/connector.h"

namespace leafpack {
namespace {

struct StoreCase {
  std::string name;
  // `count` clients of one store.
  std::vector<c10::intrusive_ptr<c10d::Store>> (*make)(int count);
};

std::vector<c10::intrusive_ptr<c10d::Store>> MakeHash(int count) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  return {static_cast<size_t>(count), store};
}

std::vector<c10::intrusive_ptr<c10d::Store>> MakeFile(int count) {
  const std::string path = NewTestFolder() + "/store";
  std::vector<c10::intrusive_ptr<c10d::Store>> stores;
  for (int i = 0; i < count; ++i) stores.push_back(c10::make_intrusive<c10d::FileStore>(path, count));
  return stores;
}

std::vector<c10::intrusive_ptr<c10d::Store>> MakeTcp(int count) {
  c10d::TCPStoreOptions options;
  options.isServer = true;
  options.port = 0;
  options.waitWorkers = false;
  const auto server = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  std::vector<c10::intrusive_ptr<c10d::Store>> stores = {server};
  options.isServer = false;
  options.port = server->getPort();
  for (int i = 1; i < count; ++i) stores.push_back(c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options));
  return stores;
}

class C10dStoreTest : public testing::TestWithParam<StoreCase> {};

TEST_P(C10dStoreTest, SetCheckGet) {
  std::vector<c10::intrusive_ptr<c10d::Store>> stores = GetParam().make(2);
  std::unique_ptr<KeyValueStore> a = WrapC10dStore(stores[0], "group/7");
  std::unique_ptr<KeyValueStore> b = WrapC10dStore(stores[1], "group/7");
  std::unique_ptr<KeyValueStore> other = WrapC10dStore(stores[1], "group/8");
  const absl::Time start = absl::Now();
  EXPECT_FALSE(*b->Check("channel"));
  EXPECT_LT(absl::Now() - start, absl::Seconds(20)) << "check must not wait for the key";
  const std::string value("with\0zero\n\xff", 11);
  ASSERT_TRUE(a->Set("channel", value).ok());
  EXPECT_TRUE(*b->Check("channel"));
  EXPECT_EQ(*b->Get("channel"), value);
  EXPECT_FALSE(*other->Check("channel"));
  ASSERT_TRUE(b->Set("channel", "second").ok());
  EXPECT_EQ(*(*a->Clone())->Get("channel"), "second");
}

TEST_P(C10dStoreTest, RanksConnectThroughIt) {
  std::vector<c10::intrusive_ptr<c10d::Store>> stores = GetParam().make(2);
  std::vector<std::unique_ptr<Connector>> connectors;
  for (int rank = 0; rank < 2; ++rank) {
    ConnectorOptions options;
    options.rank = rank;
    options.size = 2;
    options.library_version = "1";
    options.loopback_only = true;
    connectors.push_back(
        std::make_unique<Connector>(WrapC10dStore(stores[static_cast<size_t>(rank)], "group"), options));
  }
  std::vector<Connector::Joined> joined;
  const absl::Time end = absl::Now() + kTestPatience;
  for (int turn = 0; joined.size() < 2 && absl::Now() < end; ++turn) {
    StepUntil(*connectors[static_cast<size_t>(turn % 2)], absl::Now() + absl::Milliseconds(5), joined);
  }
  EXPECT_EQ(joined.size(), 2u);
  EXPECT_TRUE(connectors[0]->all_local());
}

INSTANTIATE_TEST_SUITE_P(Stores, C10dStoreTest,
                         testing::Values(StoreCase{"Hash", &MakeHash}, StoreCase{"File", &MakeFile},
                                         StoreCase{"Tcp", &MakeTcp}),
                         [](const auto& test) { return test.param.name; });

// What c10d throws comes back as a Status, in one line.
TEST(C10dStoreErrorTest, ServerThatIsGone) {
  std::vector<c10::intrusive_ptr<c10d::Store>> stores = MakeTcp(2);
  std::unique_ptr<KeyValueStore> client = WrapC10dStore(stores[1], "group");
  ASSERT_FALSE(*client->Check("channel"));
  stores.erase(stores.begin());
  const absl::Status status = client->Check("channel").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(status.message().find("check of 'channel'"), std::string::npos) << status;
  EXPECT_EQ(status.message().find('\n'), std::string::npos) << status;
}

}  // namespace
}  // namespace leafpack
