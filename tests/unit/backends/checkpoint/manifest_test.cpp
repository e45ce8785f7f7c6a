// Goal: a manifest restores every field to the bit. Another program can recompute its hash. A text
// that is no manifest is refused with the reason.
#include "backends/checkpoint/manifest.hpp"

#include "backends/checkpoint/digest.hpp"
#include "tests/support/sample_snapshot.hpp"
#include "troupe/failure.hpp"

#include <nlohmann/json.hpp>

#include <bit>
#include <random>

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;
using Catch::Matchers::Contains;

namespace {

manifest sample() {
  const auto s = sample_snapshot();
  manifest m{s.loop, s.ranks, s.generation,          s.weights_digest,
             {},     {},      {{"troupe", "0.1.0"}}, s.state};
  m.files = {{"model.safetensors", std::uint64_t{1} << 63, std::string(32, 'a')}};
  m.tensors = {{"model.safetensors", "net.1.weight", "F32", {1, 3}},
               {"model.safetensors", "scalar", "I64", {}}};
  return m;
}

manifest parsed(const std::string& text) {
  return parse_manifest(std::as_bytes(std::span{text}), "here/manifest.json");
}

// A text with changed content and the right hash, as a hostile writer would make it.
std::string with_checksum(const std::string& body) {
  content_hash hash;
  hash.add(std::as_bytes(std::span{body}));
  return body + ",\n \"hash\": \"" + hash.hex() + "\"\n}\n";
}

std::string without_trailer(const std::string& text) { return text.substr(0, text.rfind(",\n")); }

std::string manifest_refusal(const std::string& text) {
  try {
    parsed(text);
  } catch (const user_error& e) {
    CHECK(e.code() == errc::checkpoint);
    CHECK_THAT(e.what(), Catch::StartsWith("here/manifest.json: "));
    return e.what();
  }
  return "accepted";
}

// The refusal of the sample manifest with one text replaced.
std::string refusal_of(const std::string& from, const std::string& to) {
  auto body = without_trailer(render_manifest(sample()));
  const auto at = body.find(from);
  REQUIRE(at != std::string::npos);
  return manifest_refusal(with_checksum(body.replace(at, from.size(), to)));
}

}  // namespace

TEST_CASE("a manifest is read back unchanged", "[checkpoint]") {
  CHECK(parsed(render_manifest(sample())) == sample());
  CHECK(parsed(render_manifest(manifest{})) == manifest{});
}

TEST_CASE("a manifest of an earlier version does not say where the monitor was measured",
          "[checkpoint]") {
  auto body = without_trailer(render_manifest(sample()));
  const auto from = body.find(",\n  \"monitored\"");
  REQUIRE(from != std::string::npos);
  body.erase(from, body.find('}', from) + 1 - from);
  auto expected = sample();
  expected.loop.monitored = {};
  CHECK(parsed(with_checksum(body)) == expected);
}

TEST_CASE("a manifest is JSON with the members of the contract", "[checkpoint]") {
  const auto json = nlohmann::json::parse(render_manifest(sample()));
  CHECK(json["schema"] == "troupe.checkpoint/1");
  CHECK(json["step"] == 10);
  CHECK(json["epoch"] == 1);
  CHECK(json["batch"] == 2);
  CHECK(json["samples"] == 640);
  CHECK(json["ranks"] == 2);
  CHECK(json["generation"] == 3);
  CHECK(json["weights_digest"] == sample().weights_digest);
  CHECK(json["loop_state"]["last"]["val/loss"] == 0.25);
  CHECK(json["files"][0]["bytes"] == std::uint64_t{1} << 63);
  CHECK(json["tensors"][0]["shape"] == nlohmann::json{1, 3});
  CHECK(json["hash"].get<std::string>().size() == 32);
}

TEST_CASE("doubles are read back to the bit", "[checkpoint]") {
  const auto seed = GENERATE(take(3, random(0u, ~0u)));
  INFO("seed " << seed);
  std::mt19937_64 draw{seed};
  auto m = sample();
  using limits = std::numeric_limits<double>;
  std::vector<double> numbers{0.0,
                              -0.0,
                              1.0,
                              0.1,
                              limits::min(),
                              limits::max(),
                              limits::denorm_min(),
                              limits::infinity(),
                              -limits::infinity(),
                              9007199254740993.0,
                              -1e300,
                              1.0 / 3};
  for (int i = 0; i < 500; ++i)
    if (const auto x = std::bit_cast<double>(draw()); !std::isnan(x)) numbers.push_back(x);
  for (std::size_t i = 0; i < numbers.size(); ++i)
    m.loop.last["m" + std::to_string(i)] = numbers[i];
  m.loop.early_stopping[0].best = -limits::infinity();
  const auto back = parsed(render_manifest(m));
  CHECK(back == m);
  for (std::size_t i = 0; i < numbers.size(); ++i)
    CHECK(std::bit_cast<std::uint64_t>(back.loop.last.at("m" + std::to_string(i))) ==
          std::bit_cast<std::uint64_t>(numbers[i]));
  m.loop.last["bad"] = limits::quiet_NaN();
  CHECK(std::isnan(parsed(render_manifest(m)).loop.last.at("bad")));
}

TEST_CASE("state text is read back to the byte", "[checkpoint]") {
  auto m = sample();
  m.state = "{\"a\" :\t[1.50, \"\\u00fc\"]}\n\"\\ not even JSON \x01";
  CHECK(parsed(render_manifest(m)).state == m.state);
  m.state = "\xff";
  CHECK_THROWS_WITH(render_manifest(m), Contains("not UTF-8"));
}

TEST_CASE("a manifest with any flipped bit or truncation is refused", "[checkpoint]") {
  const auto text = render_manifest(sample());
  for (std::size_t bit = 0; bit < text.size() * 8; ++bit) {
    auto changed = text;
    changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ (1 << bit % 8));
    if (manifest_refusal(changed) == "accepted") FAIL("bit " << bit << " was accepted");
  }
  for (std::size_t length = 0; length < text.size(); ++length)
    if (manifest_refusal(text.substr(0, length)) == "accepted")
      FAIL("cut at " << length << " was accepted");
  CHECK(manifest_refusal(text + "\n") != "accepted");
}

TEST_CASE("a manifest with a valid hash and invalid content is refused", "[checkpoint]") {
  CHECK_THAT(refusal_of("checkpoint/1", "checkpoint/2"), Contains("troupe.checkpoint/1"));
  CHECK_THAT(refusal_of("\"step\": 10", "\"step\": 11"), Contains("contradicts itself"));
  CHECK_THAT(refusal_of("\"step\": 10", "\"step\": -1"), Contains("\"step\" is not a whole"));
  CHECK_THAT(refusal_of("\"step\": 10", "\"step\": 1.5"), Contains("\"step\" is not a whole"));
  CHECK_THAT(refusal_of("\"step\": 10", "\"step\": \"10\""), Contains("\"step\" is not a whole"));
  CHECK_THAT(refusal_of("\"step\": 10", "\"stop\": 10"), Contains("has no member \"step\""));
  CHECK_THAT(refusal_of("\"step\": 10", "\"epoch\": 10"), Contains("\"epoch\" twice"));
  CHECK_THAT(refusal_of("\"ranks\": 2", "\"ranks\": 2147483648"), Contains("\"ranks\" is not"));
  CHECK_THAT(refusal_of("\"monitor\": \"val/loss\",\n   \"step\"", "\"monitor\": 1,\n   \"step\""),
             Contains("\"monitor\" is not a text"));
  CHECK_THAT(refusal_of("\"ended_by\": 2", "\"ended_by\": 9"), Contains("\"ended_by\" is not"));
  CHECK_THAT(refusal_of("\"val/accuracy\",", "1,"), Contains("\"of_validation\" holds something"));
  CHECK_THAT(refusal_of("\"epoch\": -1", "\"epoch\": -2"), Contains("\"epoch\" is not a whole"));
  CHECK_THAT(refusal_of("\"validated\": true", "\"validated\": 1"), Contains("\"validated\""));
  CHECK_THAT(refusal_of("\"val/loss\": 0.25", "\"val/loss\": \"x\""), Contains("\"last\""));
  CHECK_THAT(refusal_of("\"name\": \"model.safetensors\"", "\"name\": \"../model\""),
             Contains("../model"));
  CHECK_THAT(refusal_of("\"name\": \"model.safetensors\"", "\"name\": \"manifest.json\""),
             Contains("manifest.json"));
  CHECK_THAT(refusal_of("\"name\": \"model.safetensors\"", "\"name\": \".hidden\""),
             Contains(".hidden"));
  CHECK_THAT(manifest_refusal(with_checksum("{\"a\":" + std::string(100000, '['))),
             Contains("nested deeper"));
  CHECK_THAT(manifest_refusal(with_checksum("[1")), Contains("not JSON"));
  CHECK_THAT(manifest_refusal(with_checksum("{\"schema\": 1")),
             Contains("\"schema\" is not a text"));
}

TEST_CASE("is_plain_name refuses names that could leave the folder", "[checkpoint]") {
  for (const auto* good : {"a", "model.safetensors", "a..b", "ü"}) CHECK(is_plain_name(good));
  for (const auto& bad :
       {std::string{}, std::string{"."}, std::string{".."}, std::string{"a/b"}, std::string{"/a"},
        std::string{"a\\b"}, std::string("a\0b", 3), std::string(256, 'a')})
    CHECK_FALSE(is_plain_name(bad));
}
