// Goal: the text of a case. It can be read back, a damaged or hostile text is refused with line and
// reason, and no text can ask for all memory.
#include "apps/testing/case.hpp"
#include "apps/testing/null_payload.hpp"
#include "troupe/detail/data_order.hpp"
#include "troupe/failure.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

run_case some_case(std::uint64_t n) {
  auto draw = [n, i = std::uint64_t{0}](std::uint64_t bound) mutable {
    return mix(mix(n) + ++i) % bound;
  };
  run_case c;
  c.what.job.ranks = 1 + static_cast<std::int32_t>(draw(9));
  c.what.job.steps = 1 + static_cast<std::int64_t>(draw(50));
  c.what.job.buffers = draw(2) == 1;
  c.what.job.seed = mix(n);
  c.what.job.detect = nanoseconds{1'000'000 + static_cast<std::int64_t>(draw(1'000'000'000))};
  c.what.job.max_restarts = static_cast<std::int32_t>(draw(5));
  c.what.job.on_loss = static_cast<elastic_options::loss>(draw(2));
  c.what.job.min_ranks = 1 + static_cast<std::int32_t>(draw(4));
  c.what.job.spares = static_cast<std::int32_t>(draw(3));
  c.what.job.processes = static_cast<std::int32_t>(draw(5));
  c.what.plan.simulation.schedule = static_cast<scheduling>(draw(3));
  c.what.plan.simulation.depth = static_cast<std::uint32_t>(draw(6));
  c.what.plan.cluster.ranks_per_host = static_cast<std::uint32_t>(draw(4));
  c.what.plan.faults.swarm = draw(2) == 1;
  for (std::size_t f = 0; f < fault_kinds; ++f)
    if (draw(3) == 0) c.what.plan.faults.may.add(static_cast<fault>(f));
  c.seed = mix(n + 77);  // all 64 bits
  if (draw(4) != 0) {
    c.taken.emplace();
    for (auto i = draw(20); i > 0; --i)
      c.taken->push_back({static_cast<site>(draw(static_cast<std::uint64_t>(site::count_))),
                          static_cast<std::uint32_t>(draw(choices::who_max)),
                          static_cast<std::uint32_t>(draw(100)), mix(n + i)});
  }
  if (draw(2) == 1) c.expect = "state equals the reference";
  if (draw(2) == 1) c.build = build_id();
  if (draw(2) == 1) c.meets = {"crash_rank", "resumed from a checkpoint"};
  return c;
}

std::string why_refused(const std::string& text) {
  try {
    parse_case(text);
  } catch (const user_error& error) {
    CHECK(error.code() == errc::bad_usage);
    return error.what();
  }
  return "it was taken";
}

}  // namespace

TEST_CASE("a case written as text is read back unchanged", "[case]") {
  for (std::uint64_t n = 0; n < 300; ++n) {
    const auto whole = some_case(n);
    const auto text = to_text(whole);
    INFO(text);
    const auto back = parse_case(text);
    CHECK(to_text(back) == text);
    CHECK(back.seed == whole.seed);
    CHECK(back.taken == whole.taken);
    CHECK(back.what.job.seed == whole.what.job.seed);
    CHECK(back.what.job.asked() == whole.what.job.asked());
    CHECK(back.what.plan.simulation.schedule == whole.what.plan.simulation.schedule);
    CHECK(back.what.plan.faults.may == whole.what.plan.faults.may);
    CHECK(back.meets == whole.meets);
  }
}

TEST_CASE("a replayed case trains the payload that it names", "[case]") {
  run_case c;
  c.what.job = null_payload_job(3, 4);
  c.what.plan = null_payload_plan(c.what.job);
  c.seed = 5;
  const auto text = to_text(c);
  CHECK(text.find("\npayload none\n") != std::string::npos);
  auto back = parse_case(text);
  REQUIRE(back.what.plan.payload);
  CHECK(to_text(parse_case("troupe-case/2\npayload ghost\nseed 1\nend")) ==
        to_text(parse_case("troupe-case/2\npayload none\nseed 1\nend")));
  CHECK(to_text(parse_case("troupe-case/2\nplan strikes=3 strike_per_million=7\nseed 1\nend")) ==
        to_text(parse_case("troupe-case/2\nplan faults_per_attempt=3 fault_per_million=7\n"
                           "seed 1\nend")));
  CHECK_FALSE(parse_case("troupe-case/2\npayload field\nseed 1\nend").what.plan.payload);
  auto reference = reference_of(back.what.job);
  CHECK(replay(back, reference).hashes == replay(c, reference).hashes);
  back.what.plan.payload = nullptr;
  CHECK_FALSE(replay(back, reference).hashes == replay(c, reference).hashes);
  CHECK_THAT(why_refused("troupe-case/2\npayload tensors\nseed 1\nend\n"),
             Catch::Contains("unknown payload \"tensors\""));
}

TEST_CASE("gradients of another size are replayed only with them", "[case]") {
  run_case c;
  c.what.job = null_payload_job(3, 4);
  c.what.plan = null_payload_plan(c.what.job, 1'400'000'000);
  const auto text = to_text(c);
  CHECK_THAT(why_refused(text), Catch::Contains("unknown payload \"own_none\""));
  CHECK(parse_case(text, c.what.plan).what.plan.payload == c.what.plan.payload);
}

TEST_CASE("each coverage point can stand in a case's line meets", "[case]") {
  run_case c;
  c.meets = known_marks();
  CHECK(parse_case(to_text(c)).meets == c.meets);
  run_plan plan;
  plan.marks = {{coverage_kind::sometimes, "late"}, {coverage_kind::sometimes, "late, and lost"}};
  c.meets = {"late, and lost", "crash_rank", "late"};
  CHECK(parse_case(to_text(c), plan).meets == c.meets);
}

TEST_CASE("indented lines, blank lines and comments in a case are ignored", "[case]") {
  const auto text = to_text(some_case(3));
  std::string pasted = "# seen on Friday\r\n\r\n";
  for (const auto c : text) pasted += c == '\n' ? std::string{" \r\n    "} : std::string{c};
  CHECK(to_text(parse_case(pasted)) == text);
  // other fields have job_spec's defaults
  CHECK(parse_case("troupe-case/2\nseed 3\nend").seed == 3);
}

TEST_CASE("an invalid case is refused with the line and the reason", "[case]") {
  const auto with = [](const std::string& line) {
    return "troupe-case/2\nseed 1\n" + line + "\nend\n";
  };
  const std::vector<std::pair<std::string, std::string>> hostile{
      {"", "it is empty"},
      {"troupe-case/3\nseed 1\nend\n", "the first line must be troupe-case/2: \"troupe-case/3\""},
      {"seed 1\ntroupe-case/2\nend\n", "the first line must be troupe-case/2"},
      {"troupe-case/2\nend\n", "it has no seed"},
      {"troupe-case/2\nseed 1\n", "the last line \"end\" is missing"},
      {with("seed 2"), "a second line \"seed\""},
      {with("end\njob ranks=2"), "there is text after the line \"end\""},
      {with("jobs ranks=2"), "unknown line \"jobs\""},
      {with("job ranks=2 rank=3"), "unknown field \"rank\""},
      {with("job ranks=2 steps=3 ranks=2"), "a second field \"ranks\""},
      {with("job ranks"), "\"ranks\" is not NAME=NUMBER"},
      {with("job ranks="), "\"\" is not a number"},
      {with("job ranks=two"), "\"two\" is not a number"},
      {with("job ranks=0"), "\"0\" is not within 1 .. 100000"},
      {with("job ranks=-4"), "\"-4\" is not within"},
      {with("job ranks=4000000000"), "\"4000000000\" is not within"},
      {with("job ranks=99999999999999999999"), "is too large"},
      {with("job samples=1000000000000"), "is not within 1 .. 10000000"},
      {with("job width=18446744073709551615"), "is not within"},
      {with("job fine=2"), "is not within 0 .. 1"},
      {with("job detect=0"), "is not within"},
      {with("plan schedule=3"), "\"3\" is not within 0 .. 2"},
      {with("plan faults_per_attempt=1000000"), "is not within 0 .. 16"},
      {with("plan events_limit=0"), "is not within"},
      {with("faults crash_rnak"), "unknown fault \"crash_rnak\""},
      {with("choices fault.0=1"), "\"fault.0=1\" is not SITE.WHO.OCCURRENCE=VALUE"},
      {with("choices fault.0.0"), "is not SITE.WHO.OCCURRENCE=VALUE"},
      {with("choices fualt.0.0=1"), "unknown site \"fualt\""},
      {with("choices fault.-1.0=1"), "\"-1\" is not a number"},
      {with("choices fault.16777216.0=1"), "\"16777216\" is too large"},
      {with("choices fault.0.4294967296=1"), "is too large"},
      {with("choices fault.0.0=1,fault.1.0=1"), "is not SITE.WHO.OCCURRENCE=VALUE"},
      {with("build"), "it was taken"},
      {with("end of it"), "this line takes no arguments"},
      {std::string(100'000, 'x'), "the first line must be troupe-case/2"},
  };
  for (const auto& [text, why] : hostile) {
    INFO(text.substr(0, 200));
    const auto said = why_refused(text);
    CHECK_THAT(said, Catch::Contains(why));
    CHECK(said.size() < 1000);
  }
}

TEST_CASE("a damaged case is refused or read as another case; nothing else is thrown", "[case]") {
  const auto text = to_text(some_case(11));
  for (std::size_t length = 0; length + 1 < text.size(); ++length) {
    INFO(length);
    CHECK(why_refused(text.substr(0, length)) != "it was taken");
  }
  for (std::size_t at = 0; at < text.size(); ++at)
    for (int bit = 0; bit < 8; ++bit) {
      auto flipped = text;
      flipped[at] = static_cast<char>(flipped[at] ^ (1 << bit));
      CHECK_FALSE(why_refused(flipped).empty());  // and throws nothing else
    }
}

TEST_CASE("a replay reports where it differs from its case", "[case]") {
  run_case c;
  c.build = std::string(40, '0');
  c.expect = "steps are one chain";
  c.meets = {"crash_rank", "the program was killed", "resumed from a checkpoint"};
  run_report r;
  r.faults[static_cast<std::size_t>(fault::crash_rank)] = 1;
  r.marks["the program was killed"] = 2;
  r.marks["resumed from a checkpoint"] = 0;
  r.violations.push_back({"each sample once", "another oracle"});
  const auto said = remarks(c, r);
  REQUIRE(said.size() == 3);
  CHECK_THAT(said[0], Catch::Contains("build 000000000000"));
  CHECK_THAT(said[1], Catch::Contains("\"steps are one chain\""));
  CHECK_THAT(said[2], Catch::Contains("\"resumed from a checkpoint\""));
  c.build = build_id();
  CHECK(c.build.size() >= 16);
  c.expect = "each sample once";
  c.meets.pop_back();
  CHECK(remarks(c, r).empty());
}

TEST_CASE("a case that needs a test's own parts is refused without them", "[case]") {
  constexpr user_coverage late{coverage_kind::rare, "late"};
  run_plan plan;
  plan.extensions = {trains([](recipe_ptr inner) { return inner; })};
  plan.marks = {late, late};
  plan.cluster.network.per_host = 8;
  plan.cluster.slow_hosts = {{3, 130}};
  run_case c;
  c.what.plan = plan;
  const auto text = to_text(c);
  CHECK_THAT(text, Catch::Contains("\nbrings extensions=1 marks=2 network=1 slow_nodes=1\n"));
  CHECK(to_text(parse_case(text, plan)) == text);
  CHECK_THAT(why_refused(text),
             Catch::Contains("cannot be replayed without its extensions (the recorded run had 1") &&
                 Catch::Contains("its user coverage points") &&
                 Catch::Contains("its network costs") && Catch::Contains("its slow hosts") &&
                 Catch::Contains("parse_case(text, plan)"));
  auto fewer = plan;
  fewer.extensions.clear();
  CHECK_THROWS_WITH(parse_case(text, fewer),
                    Catch::Contains("without its extensions") && !Catch::Contains("marks (the"));
  // A case written before this line existed is accepted.
  CHECK(why_refused(to_text(run_case{})) == "it was taken");
}
