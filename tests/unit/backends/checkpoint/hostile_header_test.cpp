// Goal: any false claim in a header costs an error that says what is wrong, and no memory.
// Method: headers are given as text; a table pairs each with words of its error.
#include "backends/checkpoint/bounded_json.hpp"
#include "backends/checkpoint/safetensors.hpp"
#include "backends/checkpoint/safetensors_header.hpp"
#include "troupe/failure.hpp"

#include <fmt/format.h>
#include <sys/resource.h>
#include <nlohmann/json.hpp>

#include <string>

#include "tests/support/catch.hpp"

using namespace troupe;
using Catch::Matchers::Contains;

namespace {

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return fmt::format(R"("{}":{{"dtype":"{}","shape":{},"data_offsets":{}}})", name, dtype, shape,
                     offsets);
}

std::string header_refusal(const std::string& text, std::uint64_t data_bytes = 8) {
  try {
    parse_safetensors_header(text, data_bytes);
  } catch (const std::runtime_error& e) {
    return e.what();
  }
  return "accepted";
}

std::string file_refusal(std::uint64_t claimed, const std::string& rest) {
  std::string text(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) text[i] = static_cast<char>(claimed >> (8 * i));
  text += rest;
  try {
    decode_safetensors(std::as_bytes(std::span{text}), "hostile");
  } catch (const user_error& e) {
    return e.what();
  }
  return "accepted";
}

std::int64_t peak_kib() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

struct hostile {
  std::string text;
  std::string words;
};

}  // namespace

TEST_CASE("the valid header that the hostile ones are derived from is accepted", "[checkpoint]") {
  CHECK(header_refusal("{" + entry("a", "F32", "[2]", "[0,8]") + "}") == "accepted");
  CHECK(header_refusal("{" + entry("a", "F32", "[1]", "[4,8]") + "," +
                       entry("b", "F32", "[1]", "[0,4]") + "," + entry("c", "F64", "[0]", "[4,4]") +
                       "}   ") == "accepted");
}

TEST_CASE("a header of another shape is refused with a reason", "[checkpoint]") {
  const auto fine = entry("a", "F32", "[2]", "[0,8]");
  const auto fine_b = entry("b", "U8", "[0]", "[8,8]");
  const std::vector<hostile> all{
      {"", "does not begin with {"},
      {" {" + fine + "}", "does not begin with {"},
      {"[]", "does not begin with {"},
      {"{", "not JSON"},
      {"{" + fine, "not JSON"},
      {"{" + fine + "}x", "not JSON"},
      {"{" + fine + "}{}", "not JSON"},
      {"{" + fine + ",}", "not JSON"},
      {"{\"\xff\":{}}", "not JSON"},
      {std::string("{\"a\0\":1}", 8), "not JSON"},
      {R"({"a":1})", "a number where"},
      {R"({"a":null})", "null where"},
      {R"({"a":true})", "true or false where"},
      {R"({"a":"F32"})", "a text where"},
      {R"({"a":[]})", "an array where"},
      {R"({"a":{}})", "no dtype, shape or data_offsets"},
      {R"({"a":{"dtype":"F32","shape":[2]}})", "no dtype, shape or data_offsets"},
      {R"({"a":{"dtype":{"dtype":"F32"}}})", "an object where"},
      {R"({"a":{"dtype":["F32"]}})", "an array where"},
      {R"({"a":{"shape":"F32"}})", "a text where"},
      {R"({"a":{"shape":2}})", "a number where"},
      {R"({"a":{"shape":[[2]]}})", "an array where"},
      {R"({"a":{"shape":[{}]}})", "an object where"},
      {R"({"a":{"shape":["2"]}})", "a text where"},
      {R"({"a":{"shape":[-1]}})", "a negative number where"},
      {R"({"a":{"shape":[-0]}})", "a negative number where"},
      {R"({"a":{"shape":[2.0]}})", "a number with a fraction"},
      {R"({"a":{"shape":[2e0]}})", "a number with a fraction"},
      {R"({"a":{"shape":[18446744073709551616]}})", "too many digits"},
      {R"({"a":{"shape":[9223372036854775808]}})", "beyond 2^63"},
      {R"({"a":{"shape":[null]}})", "null where"},
      {R"({"a":{"shape":[2],"shape":[2]}})", "shape twice"},
      {R"({"a":{"dtype":"F32","dtype":"F32"}})", "dtype twice"},
      {R"({"a":{"strides":[2]}})", "unknown member \"strides\""},
      {R"({"a":{"dtype":"f32"}})", "unknown dtype \"f32\""},
      {R"({"a":{"dtype":""}})", "unknown dtype"},
      {R"({"__metadata__":{"a":1}})", "a number where"},
      {R"({"__metadata__":{"a":{}}})", "an object where"},
      {R"({"__metadata__":[]})", "an array where"},
      {R"({"__metadata__":{"a":"1","a":"2"}})", "\"a\" twice"},
      {R"({"__metadata__":{},"__metadata__":{}})", "__metadata__ twice"},
      {"{" + fine + "," + entry("a", "U8", "[0]", "[8,8]") + "}", "\"a\" is there twice"},
      {"{" + fine + "," + fine_b + "," + fine_b + "}", "\"b\" is there twice"},
  };
  for (const auto& [text, words] : all) {
    INFO(text);
    CHECK_THAT(header_refusal(text), Contains(words));
  }
}

TEST_CASE("tensor ranges that overlap or leave gaps or overflow are refused", "[checkpoint]") {
  const auto one = [](const std::string& dtype, const std::string& shape,
                      const std::string& offsets) {
    return "{" + entry("a", dtype, shape, offsets) + "}";
  };
  const auto two = [](const std::string& first, const std::string& second) {
    return "{" + entry("a", "F32", "[1]", first) + "," + entry("b", "F32", "[1]", second) + "}";
  };
  const std::vector<hostile> all{
      {one("F32", "[2]", "[8,0]"), "hole"},
      {one("F32", "[2]", "[0]"), "fewer than two offsets"},
      {one("F32", "[2]", "[]"), "fewer than two offsets"},
      {one("F32", "[2]", "[0,8,8]"), "a third offset"},
      {one("F32", "[2]", "[0,16]"), "ends at byte 16 of 8"},
      {one("F32", "[2]", "[0,9223372036854775807]"), "of 8"},
      {one("F32", "[2]", "[4,12]"), "hole"},
      {one("F32", "[1]", "[0,8]"), "its dtype and shape need 4"},
      {one("F32", "[]", "[0,8]"), "its dtype and shape need 4"},
      {one("F16", "[2]", "[0,8]"), "its dtype and shape need 4"},
      {one("F32", "[1]", "[0,4]"), "4 bytes behind the last tensor"},
      {one("F32", "[4611686018427387904,4]", "[0,8]"), "overflows"},
      {one("F32", "[4611686018427387904,4,0]", "[0,8]"), "overflows"},
      {one("F32", "[4294967296,1073741826]", "[0,8]"), "overflows"},
      {two("[0,4]", "[0,4]"), "overlaps"},
      {two("[0,4]", "[2,6]"), "overlaps"},
      {two("[0,4]", "[5,9]"), "hole"},
      {"{" + entry("a", "F32", "[2]", "[0,8]") + "," + entry("b", "U8", "[0]", "[4,4]") + "}",
       "overlaps"},
      {"{}", "8 bytes behind the last tensor"},
  };
  for (const auto& [text, words] : all) {
    INFO(text);
    CHECK_THAT(header_refusal(text), Contains(words));
  }
  CHECK_THAT(header_refusal("{" + entry("a", "U8", "[1]", "[2,1]") + "}", 2), Contains("hole"));
}

TEST_CASE("the claimed header length is checked before the header is read", "[checkpoint]") {
  CHECK_THAT(file_refusal(0, ""), Contains("does not begin with {"));
  CHECK_THAT(file_refusal(3, "{}"), Contains("claims 3 bytes, the file has 10"));
  CHECK_THAT(file_refusal(std::uint64_t{1} << 62, "{}"), Contains("more than the 104857600"));
  CHECK_THAT(file_refusal(~std::uint64_t{0}, "{}"), Contains("more than the 104857600"));
  CHECK_THAT(file_refusal(100 << 20, "{}"), Contains("the file has 10"));
  CHECK_THAT(file_refusal(2, "{}"), Contains("accepted"));
}

TEST_CASE("deep nesting and long texts and many entries cost no memory", "[checkpoint]") {
  const auto before = peak_kib();
  constexpr std::size_t big = std::size_t{16} << 20;
  CHECK_THAT(header_refusal("{\"a\":" + std::string(big, '[')), Contains("an array where"));
  std::string deep;
  for (std::size_t i = 0; i < big / 5; ++i) deep += "{\"a\":";
  CHECK_THAT(header_refusal(deep), Contains("unknown member \"a\""));
  CHECK_THAT(header_refusal("{\"a\":{\"shape\":[" + std::string(big, ' ')), Contains("not JSON"));
  std::string shape = "{\"a\":{\"shape\":[0";
  for (std::size_t i = 0; i < big / 2; ++i) shape += ",0";
  CHECK_THAT(header_refusal(shape), Contains("more than 64 dimensions"));
  const auto message = header_refusal("{\"" + std::string(big, 'n') + "\":{\"x\":1}}");
  CHECK(message.size() < 500);
  // Allows for the texts and the tokenizer's copies (twice under AddressSanitizer), not for a tree
  // of values.
  CHECK(peak_kib() - before < 600 << 10);
}

TEST_CASE("bounded JSON refuses deep nesting and too many values and repeated members",
          "[checkpoint]") {
  CHECK(parse_bounded_json(R"({"a":[1,{"a":2}]})")["a"][1]["a"] == 2);
  CHECK_THROWS_WITH(parse_bounded_json(std::string(1000000, '[')), Contains("nested deeper"));
  CHECK_THROWS_WITH(parse_bounded_json("[1,2,3]", {16, 3}), Contains("more than 3 values"));
  CHECK_THROWS_WITH(parse_bounded_json(R"({"a":{"b":1},"a":2})"), Contains("\"a\" twice"));
  CHECK_THROWS_WITH(parse_bounded_json("{\"a\":\"\xff\"}"), Contains("not JSON at its byte"));
  CHECK_THROWS_WITH(parse_bounded_json(""), Contains("not JSON"));
  CHECK_THROWS_WITH(parse_bounded_json("1e999"), Contains("not JSON"));
}
