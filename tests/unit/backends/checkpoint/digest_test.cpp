// Goal: the digests are those that other programs compute. Compared with known values of XXH3-128
// and with the documented byte string of weights_digest, assembled by hand.
#include "backends/checkpoint/digest.hpp"

#include "tests/support/sample_snapshot.hpp"
#include "troupe/failure.hpp"

#include <xxhash.h>

#include <algorithm>

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

std::string hex_of(const std::string& text) {
  content_hash hash;
  hash.add(std::as_bytes(std::span{text}));
  return hash.hex();
}

}  // namespace

TEST_CASE("content_hash prints XXH3-128 as xxhsum does", "[checkpoint]") {
  CHECK(hex_of("") == "99aa06d3014798d86001c324468d497f");
  const std::string text = "troupe";
  const auto expected = XXH3_128bits(text.data(), text.size());
  char digits[33];
  std::snprintf(digits, sizeof digits, "%016llx%016llx",
                static_cast<unsigned long long>(expected.high64),
                static_cast<unsigned long long>(expected.low64));
  CHECK(hex_of(text) == digits);
}

TEST_CASE("a hash does not depend on how its input is split", "[checkpoint]") {
  const std::string text(3000, 'x');
  for (const std::size_t cut : {0, 1, 239, 240, 1024, 3000}) {
    content_hash hash;
    hash.add(std::as_bytes(std::span{text}.first(cut)));
    hash.add(std::as_bytes(std::span{text}.subspan(cut)));
    CHECK(hash.hex() == hex_of(text));
  }
}

TEST_CASE("weights_digest is the hash of the documented bytes", "[checkpoint]") {
  const std::vector<tensor_blob> tensors{blob<std::uint16_t>("b", "BF16", {2, 1}, {0x1234, 0x5678}),
                                         blob<std::uint8_t>("a", "U8", {}, {7})};
  using namespace std::string_literals;
  const auto expected =
      "\1\0\0\0\0\0\0\0a\2\0\0\0\0\0\0\0U8\0\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\7"
      "\1\0\0\0\0\0\0\0b\4\0\0\0\0\0\0\0BF16\2\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0"
      "\4\0\0\0\0\0\0\0\x34\x12\x78\x56"s;
  CHECK(weights_digest(tensors) == hex_of(expected));
}

TEST_CASE("weights_digest depends on all content but not on the order of tensors", "[checkpoint]") {
  auto tensors = sample_snapshot().model;
  const auto digest = weights_digest(tensors);
  std::reverse(tensors.begin(), tensors.end());
  CHECK(weights_digest(tensors) == digest);

  auto renamed = tensors;
  renamed[0].name += "x";
  CHECK(weights_digest(renamed) != digest);
  auto other_dtype = tensors;
  other_dtype[0].dtype = "I32";
  CHECK(weights_digest(other_dtype) != digest);
  auto reshaped = tensors;
  std::find_if(reshaped.begin(), reshaped.end(), [](auto& t) {
    return t.name == "net.1.weight";
  })->shape = {3, 1};
  CHECK(weights_digest(reshaped) != digest);
  tensors.pop_back();
  CHECK(weights_digest(tensors) != digest);
}

TEST_CASE("weights_digest of a tensor without bytes is an error that names it", "[checkpoint]") {
  CHECK_THROWS_WITH(weights_digest(std::vector<tensor_blob>{{"a", "F32", {0}, nullptr}}),
                    Catch::Contains("the tensor a has no bytes"));
}
