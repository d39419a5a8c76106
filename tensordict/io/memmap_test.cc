#include "tensordict/io/memmap.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tensordict/ops/combine.h"
#include "tensordict/ops/compare.h"
#include "tensordict/ops/lazy_stack.h"
#include "tensordict/ops/ops_testutil.h"

namespace leafpack {
namespace {

using testing::ElementsAre;

TensorDict Sample() {
  TensorDict tree = *TensorDict::Make(
      {{"a", Counted({2, 3})},
       {"n", {{"b", at::ones({2}, at::kBFloat16)}, {"s", "text"}, {"e", {}}}},
       {"i", at::zeros({2, 0}, at::kLong)},
       {"x.y", Counted({2, 4}).slice(1, 0, 4, 2)},
       {"", at::ones({2}, at::kBool)},
       {"a/b", at::ones({2}, at::kComplexDouble)},
       {"..", at::ones({2}, at::kByte)},
       {"l", *NonTensor::List({1, 2.5, "x", true, NonTensor()})}},
      {2});
  EXPECT_TRUE(tree.SetNames({"time"}).ok());
  return tree;
}

class MemmapTest : public testing::Test {
 protected:
  MemmapTest() {
    folder_ = absl::StrCat(testing::TempDir(), "/",
                           testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    path_ = folder_ + "/tree";
  }
  ~MemmapTest() override { std::filesystem::remove_all(folder_); }

  void Write(const std::string& file, const std::string& bytes) {
    const std::filesystem::path path = path_ + "/" + file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << bytes;
  }
  std::string Read(const std::string& file) {
    std::ifstream in(path_ + "/" + file, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  }
  // What tensordict 0.15.3 writes for a tree of batch size [2].
  void WriteTheirs() {
    Write("meta.json",
          R"({"a": {"device": "cpu", "shape": [2, 3], "dtype": "torch.float32", "is_nested": false}, )"
          R"("n": {"type": "TensorDict"}, "i": {"device": "cpu", "shape": [2, 0], )"
          R"("dtype": "torch.int64", "is_nested": false}, "\u00e9": {"device": "cpu", )"
          R"("shape": [2], "dtype": "torch.uint8", "is_nested": false}, "shape": [2], )"
          R"("device": "cpu", "_type": "<class 'tensordict._td.TensorDict'>", )"
          R"("_format_version": 1, "_class": "tensordict:TensorDict", "_names": ["time"]})");
    const at::Tensor a = Counted({2, 3});
    Write("a.memmap", std::string(static_cast<const char*>(a.const_data_ptr()), 24));
    Write("\u00e9.memmap", std::string("\x01\x02", 2));
    Write("n/meta.json",
          R"({"s": {"type": "NonTensorData"}, "shape": [2], "device": "cpu", )"
          R"("_type": "<class 'tensordict._td.TensorDict'>", "_format_version": 1, )"
          R"("_class": "tensordict:TensorDict", "_names": ["time"]})");
    Write("n/s/meta.json",
          R"({"_type": "<class 'tensordict.tensorclass.NonTensorData'>", "data": "text", )"
          R"("_metadata": null, "_is_non_tensor": true})");
  }

  std::string folder_, path_;
};

TEST_F(MemmapTest, RoundTrips) {
  const TensorDict tree = Sample();
  ASSERT_TRUE(SaveMemmap(tree, path_).ok());
  LEAFPACK_ASSIGN_OR_FAIL(const TensorDict back, LoadMemmap(path_));
  EXPECT_TRUE(*Equal(back, tree));
  EXPECT_EQ(back.names(), tree.names());
  EXPECT_TRUE(std::filesystem::exists(path_ + "/a%2Fb.memmap"));
  EXPECT_TRUE(std::filesystem::exists(path_ + "/%.memmap"));
  EXPECT_TRUE(std::filesystem::exists(path_ + "/%2E%2E.memmap"));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
  ASSERT_TRUE(SaveMemmap(TensorDict(), folder_ + "/none").ok());
  EXPECT_TRUE(LoadMemmap(folder_ + "/none/")->empty());
}

TEST_F(MemmapTest, ReadsWhatTensordictWrote) {
  WriteTheirs();
  LEAFPACK_ASSIGN_OR_FAIL(const TensorDict tree, LoadMemmap(path_));
  EXPECT_THAT(PathsIn(tree), ElementsAre("a", "i", "n", "n.s", "\u00e9"));
  EXPECT_TRUE(tree.Get("a")->equal(Counted({2, 3})));
  EXPECT_EQ(tree.Get("\u00e9")->sum().item<int64_t>(), 3);
  EXPECT_EQ(tree.batch_size(), at::IntArrayRef({2}));
  EXPECT_THAT(tree.names(), ElementsAre("time"));
  EXPECT_EQ(*tree.GetNonTensor({"n", "s"}), NonTensor("text"));
}

TEST_F(MemmapTest, WritesReachTheFilesIfTheyShall) {
  ASSERT_TRUE(SaveMemmap(Sample(), path_).ok());
  LEAFPACK_ASSIGN_OR_FAIL(const TensorDict mine, LoadMemmap(path_, MapMode::kPrivate));
  EXPECT_EQ(MemmapFileOf(*mine.Get("a")), std::nullopt);
  mine.Get("a")->fill_(7);
  LEAFPACK_ASSIGN_OR_FAIL(const TensorDict shared, LoadMemmap(path_));
  EXPECT_EQ(shared.Get("a")->sum().item<double>(), 15);
  EXPECT_EQ(MemmapFileOf(*shared.Get("a")), path_ + "/a.memmap");
  EXPECT_EQ(MemmapFileOf(shared.Get("a")->select(0, 0)), std::nullopt);
  EXPECT_EQ(MemmapFileOf(at::ones({2})), std::nullopt);
  shared.Get("a")->fill_(1);
  LEAFPACK_ASSIGN_OR_FAIL(const TensorDict again, LoadMemmap(path_));
  EXPECT_EQ(again.Get("a")->sum().item<double>(), 6);
}

TEST_F(MemmapTest, AnOldFolderIsReplacedWhole) {
  ASSERT_TRUE(SaveMemmap(Sample(), path_).ok());
  LEAFPACK_ASSIGN_OR_FAIL(const TensorDict old, LoadMemmap(path_));
  const TensorDict small = *TensorDict::Make({{"q", at::ones({1'000'000})}});
  ExpectError(SaveMemmap(small, path_), "is there already", absl::StatusCode::kAlreadyExists);
  ExpectError(SaveMemmap(small, path_, {.overwrite = true, .progress = [](int64_t, int64_t) {
                           return false;
                         }}),
              "given up", absl::StatusCode::kCancelled);
  EXPECT_TRUE(*Equal(*LoadMemmap(path_), Sample()));
  ASSERT_TRUE(SaveMemmap(small, path_, {.overwrite = true}).ok());
  EXPECT_TRUE(*Equal(*LoadMemmap(path_), small));
  EXPECT_FALSE(std::filesystem::exists(path_ + "/a.memmap"));
  EXPECT_TRUE(*Equal(old, Sample()));  // its leaves keep what they map
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
}

TEST_F(MemmapTest, WhatIsNoTreeIsKept) {
  const absl::StatusCode kept = absl::StatusCode::kFailedPrecondition;
  Write("precious.txt", "x");
  Write("sub/more", "y");
  ExpectError(SaveMemmap(Sample(), path_, {.overwrite = true}), "precious.txt", kept);
  EXPECT_EQ(Read("precious.txt") + Read("sub/more"), "xy");
  ExpectError(SaveMemmap(Sample(), path_ + "/precious.txt", {.overwrite = true}), "is no folder", kept);
  EXPECT_EQ(Read("precious.txt"), "x");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
  // What comes while the new folder is written.
  std::filesystem::remove_all(path_);
  ASSERT_TRUE(SaveMemmap(Sample(), path_).ok());
  const auto comes = [&](int64_t, int64_t) {
    Write("late", "z");
    return true;
  };
  ExpectError(SaveMemmap(Sample(), path_, {.overwrite = true, .progress = comes}), "late", kept);
  EXPECT_EQ(Read("late"), "z");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
}

TEST_F(MemmapTest, TheFolderBehindALinkIsReplaced) {
  ASSERT_TRUE(SaveMemmap(Sample(), path_).ok());
  std::filesystem::create_directory_symlink("tree", folder_ + "/link");
  const TensorDict small = *TensorDict::Make({{"q", at::ones({3})}});
  ExpectError(SaveMemmap(small, folder_ + "/link"), "is there already", absl::StatusCode::kAlreadyExists);
  ASSERT_TRUE(SaveMemmap(small, folder_ + "/link/", {.overwrite = true}).ok());
  EXPECT_TRUE(std::filesystem::is_symlink(folder_ + "/link"));
  EXPECT_TRUE(*Equal(*LoadMemmap(path_), small));
  EXPECT_TRUE(*Equal(*LoadMemmap(folder_ + "/link"), small));
}

TEST_F(MemmapTest, AZeroByteDoesNotCutThePath) {
  ASSERT_TRUE(SaveMemmap(Sample(), path_).ok());
  const std::string longer = absl::StrCat(path_, std::string("\0x", 2));
  ExpectError(SaveMemmap(TensorDict(), longer, {.overwrite = true}), "tree\\x00x: a path cannot have a zero byte");
  ExpectError(LoadMemmap(longer), "tree\\x00x: a path cannot have a zero byte");
  EXPECT_TRUE(*Equal(*LoadMemmap(path_), Sample()));
}

TEST_F(MemmapTest, WhatTheFormatLacksIsRefusedBeforeAnythingIsWritten) {
  const auto refused = [&](const NestedKey& key, TreeValue value, const std::string& text) {
    TensorDict tree = *TensorDict::Make({{"ok", at::ones({2})}});
    ASSERT_TRUE(SetValue(tree, key, std::move(value)).ok());
    ExpectError(SaveMemmap(tree, path_), text);
    EXPECT_TRUE(std::filesystem::is_empty(folder_));
  };
  for (const char* name :
       {"shape", "device", "_type", "_format_version", "_class", "_names"}) {
    refused({"n", name}, at::ones({1}), absl::StrCat("n.", name, ": the format keeps this name"));
  }
  refused({"n", "meta.json"}, TensorDict(), "n.\"meta.json\": the format keeps this name");
  refused({"n", "meta.json"}, "text", "n.\"meta.json\": the format keeps this name");
  refused({"ok.memmap", "x"}, at::ones({2}), "\"ok.memmap\": its folder would have the name of the file of ok");
  refused({"l", 0}, at::ones({1}), "l[0]: the format has no positions");
  refused("u", at::Tensor(), "u: the format has no undefined");
  refused("s", at::sparse_coo_tensor({5}, at::kFloat), "s: only dense");
  refused("m", at::ones({1}).to(at::kMeta), "m: a meta tensor");
  refused("b", NonTensor::Bytes("x"), "b: the format has no bytes");
  refused("\xff", at::ones({1}), "not UTF-8");
  refused(std::string(300, 'x'), at::ones({1}), "too long");
  ExpectError(SaveMemmap(Sample(), folder_ + "/no/such/folder"), "cannot be made",
              absl::StatusCode::kNotFound);
}

TEST_F(MemmapTest, NamesLikeThoseOfFilesThatDoNotMeet) {
  const TensorDict tree = *TensorDict::Make({{"meta.json", at::ones({2})},
                                             {"meta", at::ones({2})},
                                             {"x.memmap", at::ones({2})},
                                             {"x", {{"y", at::ones({1})}}},
                                             {"z.memmap", {{"y", at::ones({1})}}}});
  ASSERT_TRUE(SaveMemmap(tree, path_).ok());
  EXPECT_TRUE(*Equal(*LoadMemmap(path_), tree));
  ASSERT_TRUE(SaveMemmap(tree, path_, {.overwrite = true}).ok());
}

TEST_F(MemmapTest, WhatTensordictLostIsToldAndWhatItKeptIsRead) {
  for (const char* name : {"shape", "device", "_type"}) {
    for (const char* rest : {".memmap", "/meta.json"}) {
      std::filesystem::remove_all(path_);
      WriteTheirs();
      Write(absl::StrCat("n/", name, rest), "12345678");
      ExpectError(LoadMemmap(path_),
                  absl::StrCat("n/meta.json: the entry of ", name, " was lost when the folder was written: ", name, rest));
    }
  }
  std::filesystem::remove_all(path_);
  const std::string leaf = R"({"device": "None", "shape": [2], "dtype": "torch.uint8", "is_nested": false})";
  Write("meta.json", absl::StrCat(R"({"_names": )", leaf, R"(, "_class": )", leaf, R"(, "_format_version": )", leaf,
                                  R"(, "shape": [2], "device": null, "_type": "<class 'tensordict._td.TensorDict'>"})"));
  for (const char* name : {"_names", "_class", "_format_version"}) Write(absl::StrCat(name, ".memmap"), "\1\2");
  LEAFPACK_ASSIGN_OR_FAIL(const TensorDict tree, LoadMemmap(path_));
  EXPECT_THAT(PathsIn(tree), ElementsAre("_class", "_format_version", "_names"));
  EXPECT_EQ(tree.Get("_names")->sum().item<int64_t>(), 3);
}

TEST_F(MemmapTest, FoldersThatAreNoGood) {
  ExpectError(LoadMemmap(path_), "meta.json", absl::StatusCode::kNotFound);
  const auto with_meta = [&](const std::string& meta) {
    WriteTheirs();
    Write("meta.json", meta);
    return LoadMemmap(path_, MapMode::kPrivate);
  };
  const std::string type = R"("_type": "<class 'tensordict._td.TensorDict'>")";
  ExpectError(with_meta("{"), "JSON");
  ExpectError(with_meta("[]"), "of the kind none", absl::StatusCode::kUnimplemented);
  ExpectError(with_meta("{" + type + "}"), "no shape");
  ExpectError(with_meta("{" + type + R"(, "shape": [-2]})"), "no valid shape");
  ExpectError(with_meta("{" + type + R"(, "shape": [], "_names": 5})"), "no valid _names");
  ExpectError(with_meta("{" + type + R"(, "shape": [1], "_names": [5]})"), "no valid _names");
  EXPECT_TRUE(with_meta("{" + type + R"(, "shape": [], "_format_version": 0, "device": "cuda:1"})").ok());
  for (const char* version : {"99", "2", "-1", "true", "1.0", "\"1\"", "null"}) {
    ExpectError(with_meta(absl::StrCat("{", type, R"(, "shape": [], "_format_version": )", version, "}")),
                absl::StrCat("tree/meta.json: _format_version ", version, " cannot be read"),
                absl::StatusCode::kUnimplemented);
  }
  for (const char* device : {"\"bogus:3\"", "\"\"", "3", "{}"}) {
    ExpectError(with_meta(absl::StrCat("{", type, R"(, "shape": [], "device": )", device, "}")),
                absl::StrCat("tree/meta.json: the device ", device, " does not exist"));
  }
  ExpectError(with_meta(R"({"_type": "<class 'x.Mine'>", "shape": []})"), "x.Mine",
              absl::StatusCode::kUnimplemented);
  const auto with_leaf = [&](const std::string& entry) {
    return with_meta("{" + type + R"(, "shape": [2], "a": )" + entry + "}");
  };
  EXPECT_TRUE(with_leaf(R"({"shape": [2, 3], "dtype": "torch.float32"})").ok());
  ExpectError(with_leaf(R"({"shape": [2, 4], "dtype": "torch.float32"})"),
              "a.memmap: has 24 bytes, its shape [2, 4] says 32");
  ExpectError(with_leaf(R"({"shape": [3, 2], "dtype": "torch.float32"})"), "batch size [2]");
  ExpectError(with_leaf(R"({"shape": [2, 3], "dtype": "torch.float31"})"), "torch.float31");
  ExpectError(with_leaf(R"({"shape": [2, 3]})"), "dtype");
  ExpectError(with_leaf(R"({"shape": [2, 3], "dtype": "torch.float32", "device": "gpu"})"),
              "meta.json: a: the device \"gpu\" does not exist");
  ExpectError(with_leaf(R"({"dtype": "torch.float32"})"), "a has no shape");
  ExpectError(with_leaf(R"({"shape": [4294967296,4294967296], "dtype": "torch.int8"})"),
              "overflows");
  ExpectError(with_leaf(R"({"shape": [2], "dtype": "torch.int8", "is_nested": true})"), "nested",
              absl::StatusCode::kUnimplemented);
  ExpectError(with_leaf(R"({"type": "TensorDict"})"), "a/meta.json", absl::StatusCode::kNotFound);
  ExpectError(with_leaf("3"), "a has no shape");
  WriteTheirs();
  Write("n/s/meta.json", R"({"_type": "x", "_is_non_tensor": true})");  // a pickle beside it
  ExpectError(LoadMemmap(path_), "NonTensorData", absl::StatusCode::kUnimplemented);
  WriteTheirs();
  std::filesystem::remove(path_ + "/a.memmap");
  ExpectError(LoadMemmap(path_), "a.memmap", absl::StatusCode::kNotFound);
  std::filesystem::create_symlink("/etc/hostname", path_ + "/a.memmap");
  EXPECT_FALSE(LoadMemmap(path_).ok());
  std::filesystem::remove(path_ + "/a.memmap");
  std::filesystem::create_directory(path_ + "/a.memmap");
  EXPECT_FALSE(LoadMemmap(path_, MapMode::kPrivate).ok());
}

TEST_F(MemmapTest, AFolderThatLeadsBackToItselfIsRefused) {
  WriteTheirs();
  std::filesystem::remove_all(path_ + "/n");
  std::filesystem::create_directory_symlink(path_, path_ + "/n");
  ExpectError(LoadMemmap(path_), "is a link");
}

// Trees of other shapes and keys, at the positions of a node.
TensorDict Agents() {
  const TensorDict first = *TensorDict::Make({{"x", Counted({2, 3})}}, {2});
  const TensorDict second = *TensorDict::Make({{"x", Counted({2, 4})}, {"y", at::ones({2})}}, {2});
  return LazyStack::Make({first, second}, 1)->AsTree();
}

TEST_F(MemmapTest, TreesSideBySide) {
  TensorDict tree = *TensorDict::Make({{"a", at::ones({2})}, {"n", {{"agents", Agents()}}}}, {2});
  const TensorDict inner = LazyStack::Make({Agents(), Agents()}, 1)->AsTree();
  ASSERT_TRUE(tree.Set("twice", inner).ok());
  ASSERT_TRUE(SaveMemmap(tree, path_).ok());
  EXPECT_NE(Read("n/meta.json").find(R"("agents":{"type":"LazyStackedTensorDict"})"),
            std::string::npos);
  EXPECT_NE(Read("n/agents/meta.json").find(R"("stack_dim":1)"), std::string::npos);
  LEAFPACK_ASSIGN_OR_FAIL(const TensorDict back, LoadMemmap(path_));
  EXPECT_TRUE(*Equal(back, tree));
  EXPECT_EQ(back.GetDict({"n", "agents", 1})->Get("x")->size(1), 4);
  // By itself too, and with the dimension told by the batch size.
  ASSERT_TRUE(SaveMemmap(Agents(), folder_ + "/alone").ok());
  LEAFPACK_ASSIGN_OR_FAIL(const TensorDict alone, LoadMemmap(folder_ + "/alone"));
  EXPECT_EQ(alone.batch_size(), at::IntArrayRef({2}));
  LEAFPACK_ASSIGN_OR_FAIL(const LazyStack stack,
                          LazyStack::FromTree(alone, static_cast<int64_t>(alone.batch_size().size())));
  EXPECT_THAT(stack.batch_size(), ElementsAre(2, 2));
  TensorDict uneven;
  ASSERT_TRUE(uneven.Set({"l", 0}, TensorDict({1})).ok());
  ASSERT_TRUE(uneven.Set({"l", 1}, TensorDict({2})).ok());
  ExpectError(SaveMemmap(uneven, folder_ + "/uneven"), "l[0]: the format has no positions but");
}

// tensordict writes them; here all below a tree must have its batch dimensions.
TEST_F(MemmapTest, AStackAlongABatchDimensionIsReadAsOneTree) {
  const auto part = [](double value) {
    return *TensorDict::Make({{"x", at::full({2, 3}, value)}, {"n", {{"s", "same"}}}}, {2});
  };
  TensorDict tree({});
  ASSERT_TRUE(tree.Set("l", LazyStack::Make({part(1), part(2)}, 0)->AsTree()).ok());
  ASSERT_TRUE(SaveMemmap(tree, path_).ok());
  const std::string meta = Read("meta.json");
  const size_t shape = meta.find(R"("shape":[])");
  ASSERT_NE(shape, std::string::npos) << meta;
  Write("meta.json", meta.substr(0, shape) + R"("shape":[2])" + meta.substr(shape + 10));
  LEAFPACK_ASSIGN_OR_FAIL(const TensorDict back, LoadMemmap(path_, MapMode::kPrivate));
  LEAFPACK_ASSIGN_OR_FAIL(const TensorDict dense, back.GetDict("l"));
  EXPECT_EQ(dense.batch_size(), at::IntArrayRef({2, 2}));
  EXPECT_TRUE(*Equal(dense, *Stack({part(1), part(2)}, 0)));
  // A stack of stacks, both dimensions of which the tree has.
  const TensorDict inner = LazyStack::Make({part(1), part(2)}, 0)->AsTree();
  TensorDict twice({});
  ASSERT_TRUE(twice.Set("l", LazyStack::Make({inner, inner, inner}, 0)->AsTree()).ok());
  ASSERT_TRUE(SaveMemmap(twice, path_, {.overwrite = true}).ok());
  Write("meta.json", meta.substr(0, shape) + R"("shape":[3,2])" + meta.substr(shape + 10));
  LEAFPACK_ASSIGN_OR_FAIL(const TensorDict again, LoadMemmap(path_, MapMode::kPrivate));
  EXPECT_EQ(again.GetDict("l")->batch_size(), at::IntArrayRef({3, 2, 2}));
  EXPECT_EQ(again.GetDict("l")->Get("x")->sum().item<double>(), 3 * (1 + 2) * 6);
  // What says no batch size that its trees have.
  Write("meta.json", meta.substr(0, shape) + R"("shape":[3,5])" + meta.substr(shape + 10));
  ExpectError(LoadMemmap(path_, MapMode::kPrivate), "meta.json: l: ");
}

TEST_F(MemmapTest, StacksThatAreNoGood) {
  TensorDict tree = *TensorDict::Make({{"l", Agents()}}, {2});
  const auto broken = [&](const std::function<void()>& change) {
    std::filesystem::remove_all(path_);
    EXPECT_TRUE(SaveMemmap(tree, path_).ok());
    change();
    return LoadMemmap(path_, MapMode::kPrivate);
  };
  const auto meta = [&](const std::string& dim) {
    return broken([&] {
      Write("l/meta.json", R"({"_type": "<class 'tensordict._lazy.LazyStackedTensorDict'>")" + dim +
                               "}");
    });
  };
  EXPECT_TRUE(meta(R"(, "stack_dim": 1)").ok());
  ExpectError(meta(R"(, "stack_dim": 1, "_format_version": 2)"), "l/meta.json: _format_version 2",
              absl::StatusCode::kUnimplemented);
  ExpectError(meta(""), "no valid stack_dim");
  ExpectError(meta(R"(, "stack_dim": -1)"), "no valid stack_dim");
  ExpectError(meta(R"(, "stack_dim": true)"), "no valid stack_dim");
  ExpectError(meta(R"(, "stack_dim": 2)"), "stack_dim 2 is no place");
  // Trees that differ, side by side along the batch dimension of the tree that holds them.
  ExpectError(meta(R"(, "stack_dim": 0)"),
              "meta.json: l: the trees stand along dimension 0, which is one of the 1 batch dimensions of the tree "
              "above, and cannot be one tree: stack: ",
              absl::StatusCode::kUnimplemented);
  ExpectError(broken([&] { std::filesystem::rename(path_ + "/l/1", path_ + "/l/2"); }),
              "a stack of 2 folders, of which none is called 1");
  ExpectError(broken([&] {
                std::filesystem::remove_all(path_ + "/l/0");
                std::filesystem::remove_all(path_ + "/l/1");
              }),
              "a stack without a tree");
  ExpectError(broken([&] {
                std::filesystem::remove_all(path_ + "/l/1");
                std::filesystem::create_directory_symlink("0", path_ + "/l/1");
              }),
              "is a link");
  ExpectError(broken([&] {
                Write("l/1/meta.json", R"({"_type": "<class 'tensordict._td.TensorDict'>", "shape": []})");
              }),
              "has the batch size [], the tree 0 beside it [2]");
  ExpectError(broken([&] { Write("l/1/meta.json", R"({"_type": "<class 'x.Mine'>"})"); }), "x.Mine",
              absl::StatusCode::kUnimplemented);
}

TEST_F(MemmapTest, ValuesForEachElementOfTheBatch) {
  TensorDict tree({2, 3});
  TensorDict words({2, 3});
  for (int64_t i = 0; i < 2; ++i) {
    for (int64_t j = 0; j < 3; ++j) {
      ASSERT_TRUE(words.Set({i, j}, NonTensor(absl::StrCat(i, ",", j))).ok());
    }
  }
  ASSERT_TRUE(tree.Set("words", words).ok());
  ASSERT_TRUE(SaveMemmap(tree, path_).ok());
  EXPECT_NE(Read("words/meta.json").find(R"("data":[["0,0","0,1","0,2"],["1,0")"),
            std::string::npos);
  EXPECT_TRUE(*Equal(*LoadMemmap(path_), tree));
  const auto with_data = [&](const std::string& data) {
    Write("words/meta.json", R"({"_type": "<class 'tensordict.tensorclass.NonTensorStack'>", "data": )" +
                                 data + "}");
    return LoadMemmap(path_);
  };
  ExpectError(with_data("[[1, 2, 3]]"), "words: the values are not one for each element");
  ExpectError(with_data("[[1, 2, 3], 4]"), "words: the values are not one for each element");
  ExpectError(with_data("\"text\""), "words: the values are not one for each element");
  EXPECT_TRUE(with_data("[[1, 2, 3], [4, null, [5]]]").ok());
  TensorDict few({2});
  ASSERT_TRUE(few.Set({"l", 0}, NonTensor(1)).ok());
  ExpectError(SaveMemmap(few, folder_ + "/few"), "l[0]: the format has no positions but");
}

TEST_F(MemmapTest, RandomChangesOfTheMetadata) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 rng(seed);
  WriteTheirs();
  const std::string good = Read("meta.json");
  for (int round = 0; round < 2000; ++round) {
    std::string text = good;
    for (size_t n = 1 + rng() % 3; n > 0 && !text.empty(); --n) {
      const size_t at = rng() % text.size();
      if (rng() % 2 == 0) {
        text[at] = "0123456789,:{}[]\"\\-"[rng() % 19];
      } else {
        text.erase(at, 1 + rng() % 6);
      }
    }
    Write("meta.json", text);
    const absl::StatusOr<TensorDict> tree = LoadMemmap(path_, MapMode::kPrivate);
    if (!tree.ok()) continue;
    tree->Visit([](const NestedKey&, const at::Tensor& leaf) { (void)leaf.sum(); });
  }
}

}  // namespace
}  // namespace leafpack
