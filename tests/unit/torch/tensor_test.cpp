// Goal: tensors and values survive encoding unchanged. Hostile bytes cost an error and no memory.
#include "troupe/detail/tensor.hpp"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <cstring>
#include <random>

#include "backends/torch/scalar_types.hpp"

#include "tests/support/catch.hpp"

namespace troupe {
namespace {

value nested(at::Tensor a, at::Tensor b) {
  return value_tuple{
      {boxed(a), value_map{{{"z", boxed(b)}, {"a", 0.5}}}, value_list{{1, true, "text", value{}}}}};
}

TEST_CASE("a tensor is unboxed as the same tensor") {
  const auto tensor = at::arange(3);
  CHECK(unboxed(boxed(tensor)).is_same(tensor));
  CHECK_THROWS_WITH(unboxed(value_list{}), "expected a tensor, got a list");
  CHECK_THROWS_WITH(unboxed(tensor_ptr{}), "expected a tensor, got no tensor");
}

TEST_CASE("map_tensors changes tensors and keeps the containers around them") {
  const auto user = std::make_shared<const std::any>(7);
  const value batch = value_tuple{{boxed(at::arange(2)), value_user{user}, value_list{{1, "x"}},
                                   value_map{{{"k", boxed(at::arange(3))}}}}};
  const auto mapped = map_tensors(batch, [](const at::Tensor& t) { return t.add(1); });
  const auto& items = mapped.get_if<value_tuple>()->items;
  CHECK(at::equal(unboxed(items[0]), at::arange(1, 3)));
  CHECK(items[1] == value{value_user{user}});
  CHECK(items[2] == value{value_list{{1, "x"}}});
  CHECK(at::equal(unboxed(items[3].get_if<value_map>()->items.at("k")), at::arange(1, 4)));
  CHECK(tensors_of(batch).size() == 2);
}

TEST_CASE("a deep copy shares no memory and needs no gradient") {
  auto tensor = at::zeros({2});
  tensor.requires_grad_();
  const auto copy = deep_copy(nested(tensor, tensor));
  tensor.detach().fill_(1);
  for (const auto& held : tensors_of(copy)) {
    CHECK(at::equal(held, at::zeros({2})));
    CHECK_FALSE(held.requires_grad());
  }
}

TEST_CASE("nested values of every kind are decoded unchanged") {
  const auto bytes = encode(nested(at::arange(6).view({2, 3}).t(), at::zeros({0, 4})));
  const auto back = decode(bytes);
  const auto tensors = tensors_of(back);
  REQUIRE(tensors.size() == 2);
  CHECK(at::equal(tensors[0], at::arange(6).view({2, 3}).t()));
  CHECK(tensors[0].scalar_type() == at::kLong);
  CHECK(tensors[1].sizes() == at::IntArrayRef({0, 4}));
  CHECK(back.get_if<value_tuple>()->items[2] == value{value_list{{1, true, "text", value{}}}});
  CHECK((encode(back) == bytes));
}

TEST_CASE("every dtype survives encoding and conversion to a blob") {
  for (std::uint8_t code = 0; const auto* type = find_scalar_type_by_code(code); ++code) {
    INFO(type->name);
    const auto tensor = at::full({3}, 1, at::kFloat).to(type->torch);
    const auto decoded = tensors_of(decode(encode(boxed(tensor)))).at(0);
    const auto restored = tensor_of(blob_of("x", tensor));
    for (const auto& back : {decoded, restored}) {
      CHECK(back.scalar_type() == type->torch);
      CHECK(std::memcmp(back.const_data_ptr(), tensor.const_data_ptr(), tensor.nbytes()) == 0);
    }
    CHECK(find_scalar_type(type->name) == type);
    CHECK(find_scalar_type(type->torch) == type);
    if (type->collective) CHECK(size_of(dtype_of(tensor)) == c10::elementSize(type->torch));
  }
}

TEST_CASE("values that cannot be sent are refused") {
  CHECK_THROWS_AS(encode(value_user{std::make_shared<const std::any>(1)}), std::invalid_argument);
  CHECK_THROWS_AS(encode(boxed(at::Tensor{})), std::invalid_argument);
  value deep;
  for (int i = 0; i < 65; ++i) deep = value_list{{deep}};
  CHECK_THROWS_AS(encode(deep), std::invalid_argument);
}

TEST_CASE("hostile bytes are refused without allocating memory") {
  const auto bytes_of = [](std::initializer_list<int> head, std::initializer_list<std::int64_t> n) {
    std::vector<std::byte> bytes;
    for (const auto x : head) bytes.push_back(static_cast<std::byte>(x));
    for (const auto x : n) {
      const auto* raw = reinterpret_cast<const std::byte*>(&x);
      bytes.insert(bytes.end(), raw, raw + sizeof x);
    }
    return bytes;
  };
  CHECK_THROWS_AS(decode({}), std::invalid_argument);
  CHECK_THROWS_AS(decode(bytes_of({99}, {})), std::invalid_argument);
  CHECK_THROWS_AS(decode(bytes_of({0, 0}, {})), std::invalid_argument);
  CHECK_THROWS_AS(decode(bytes_of({5}, {1LL << 60})), std::invalid_argument);        // text
  CHECK_THROWS_AS(decode(bytes_of({8}, {1LL << 60})), std::invalid_argument);        // list
  CHECK_THROWS_AS(decode(bytes_of({6, 8}, {1, 1LL << 50})), std::invalid_argument);  // tensor
  CHECK_THROWS_AS(decode(bytes_of({6, 8}, {2, 1LL << 40, 1LL << 40})), std::invalid_argument);
  CHECK_THROWS_AS(decode(bytes_of({6, 8}, {3, 0, 1LL << 40, 1LL << 40})), std::invalid_argument);
  CHECK_THROWS_AS(decode(bytes_of({6, 8}, {1, -1})), std::invalid_argument);
  CHECK_THROWS_AS(decode(bytes_of({6, 77}, {0, 0})), std::invalid_argument);
  std::vector<std::byte> deep;
  for (int i = 0; i < 100; ++i) {
    const auto layer = bytes_of({8}, {1});
    deep.insert(deep.end(), layer.begin(), layer.end());
  }
  CHECK_THROWS_AS(decode(deep), std::invalid_argument);
}

TEST_CASE("mutated bytes are refused or decode to a value that encodes to them") {
  const auto good = encode(nested(at::arange(4), at::zeros({2, 2})));
  std::mt19937_64 draw{1};
  for (int i = 0; i < 5000; ++i) {
    auto bytes = good;
    bytes.resize(draw() % 4 ? bytes.size() : draw() % bytes.size());
    for (auto n = draw() % 4; n > 0 && !bytes.empty(); --n)
      bytes[draw() % bytes.size()] = static_cast<std::byte>(draw());
    value decoded;
    try {
      decoded = decode(bytes);
    } catch (const std::invalid_argument&) {
      continue;
    }
    REQUIRE((encode(decoded) == bytes));
  }
}

TEST_CASE("a buffer describes contiguous memory only") {
  auto tensor = at::zeros({2, 3});
  const auto dense = buffer_of(tensor);
  CHECK(dense.data == tensor.data_ptr());
  CHECK(dense.count == 6);
  CHECK(dense.type == dtype::f32);
  auto turned = tensor.t();
  CHECK_THROWS_AS(buffer_of(turned), std::invalid_argument);
  auto none = at::Tensor{};
  CHECK_THROWS_AS(buffer_of(none), std::invalid_argument);
}

TEST_CASE("a blob whose shape contradicts its bytes: the error names the tensor") {
  auto blob = blob_of("net.1.weight", at::zeros({2, 3}));
  CHECK(blob.dtype == "F32");
  CHECK(blob.shape == std::vector<std::int64_t>{2, 3});
  blob.shape = {2, 4};
  CHECK_THROWS_WITH(tensor_of(blob), "net.1.weight: the shape needs 32 bytes, there are 24");
  blob.dtype = "F31";
  CHECK_THROWS_WITH(tensor_of(blob), "net.1.weight: unknown dtype F31");
  blob.dtype = "BOOL";
  blob.shape = {1};
  blob.bytes = std::make_shared<const std::vector<std::byte>>(1, std::byte{2});
  CHECK_THROWS_WITH(tensor_of(blob), "net.1.weight: a truth value is neither 0 nor 1");
}

}  // namespace
}  // namespace troupe
