#include "backends/collective/host_communicator.hpp"

#include "backends/collective/group_end.hpp"

#include <array>
#include <thread>

#include "tests/support/catch.hpp"

namespace troupe::collectives {
namespace {

using std::chrono::nanoseconds;
using ranks = std::vector<std::int32_t>;

/// Notes what it is asked.
struct notes {
  struct submitted {
    ranks members;
    submission what;
    nanoseconds deadline{0};
  };
  std::vector<ranks> opened;
  std::vector<submitted> submissions;
  group_end end;
};

struct noting_transport {
  using channel = std::shared_ptr<const ranks>;
  static constexpr std::string_view name = "noting";

  noting_transport(group_description who, notes& into) : who(who), into(into) {}
  const group_description& group() const { return who; }
  channel among(const ranks& members) {
    into.opened.push_back(members);
    return std::make_shared<const ranks>(members);
  }
  static const ranks& members(const channel& in) { return *in; }
  work_ptr submit(const channel& in, submission&& what, nanoseconds deadline) {
    into.submissions.push_back({*in, std::move(what), deadline});
    return ended({work_status::ok, {}, {}});
  }
  bool decide(const channel& in, submission&& what, nanoseconds deadline) {
    submit(in, std::move(what), deadline);
    return into.submissions.back().what.call.all;
  }
  std::shared_ptr<void> allocate(std::size_t) { return nullptr; }
  void abort(std::string_view why) noexcept { into.end.abort(why); }
  bool aborted() const noexcept { return into.end.aborted(); }
  bool quiescent() const noexcept { return true; }
  bool waiting() const noexcept { return false; }
  std::string why() const { return into.end.why(); }

  group_description who;
  notes& into;
};

group_description second_of_three() {
  group_description who;
  who.rank = 1;
  who.world = 3;
  who.deadline = nanoseconds{7};
  return who;
}

TEST_CASE("each call becomes one submission with its fingerprint, memory and deadline",
          "[collective]") {
  notes seen;
  host_communicator<noting_transport> c{second_of_three(), seen};
  std::array<float, 6> whole{};
  std::array<float, 2> piece{};
  const buffer all{whole.data(), 6, dtype::f32};
  const buffer own{piece.data(), 2, dtype::f32};
  const subgroup pair{{0, 1}};
  c.all_reduce(all, reduction::max, {});
  c.broadcast(all, 0, pair);
  c.all_gather(own, all, {});
  c.reduce_scatter(all, own, reduction::sum, {});
  c.barrier("x", nanoseconds{9}, pair);
  CHECK(c.decide(true, decision::all, {}));
  CHECK_FALSE(c.decide(true, decision::any, {}));
  REQUIRE(seen.submissions.size() == 7);
  const auto text = [&](std::size_t i) { return describe(seen.submissions[i].what.call); };
  CHECK(text(0) == "all_reduce(max, float32, 6)");
  CHECK(text(1) == "broadcast(float32, 6 from 0)");
  CHECK(text(2) == "all_gather(float32, 2 each)");
  CHECK(text(3) == "reduce_scatter(sum, float32, 2 each)");
  CHECK(text(4) == "barrier \"x\"");
  CHECK(text(5) == "decide(all)");
  CHECK(seen.submissions[0].what.in == whole.data());
  CHECK(seen.submissions[0].what.out == whole.data());
  CHECK(seen.submissions[2].what.in == piece.data());
  CHECK(seen.submissions[2].what.out == whole.data());
  CHECK(seen.submissions[3].what.out == piece.data());
  CHECK(seen.submissions[5].what.yes);
  CHECK(seen.submissions[1].members == pair.ranks);
  CHECK(seen.submissions[3].deadline == nanoseconds{7});
  CHECK(seen.submissions[4].deadline == nanoseconds{9});
  CHECK(seen.submissions[6].deadline == nanoseconds{7});
  CHECK(seen.opened == std::vector<ranks>{{0, 1, 2}, {0, 1}});  // the pair once
}

TEST_CASE("a call that is refused is not submitted", "[collective]") {
  notes seen;
  host_communicator<noting_transport> c{second_of_three(), seen};
  float value = 0;
  CHECK_THROWS_AS(c.broadcast({&value, 1, dtype::f32}, 3, {}), std::invalid_argument);
  CHECK_THROWS_AS(c.barrier("x", {}, {{0, 2}}), std::invalid_argument);
  CHECK(seen.submissions.empty());
}

TEST_CASE("a rank alone in its group has its own result at once", "[collective]") {
  notes seen;
  host_communicator<noting_transport> c{second_of_three(), seen};
  const subgroup alone{{1}};
  const float in = 3;
  float out = 0;
  const auto done =
      c.all_gather({const_cast<float*>(&in), 1, dtype::f32}, {&out, 1, dtype::f32}, alone);
  CHECK(done->poll().status == work_status::ok);
  CHECK(out == 3);
  CHECK(c.decide(false, decision::all, alone) == false);
  CHECK(c.decide(true, decision::any, alone));
  CHECK(seen.submissions.empty());
  c.abort("enough");
  CHECK(c.barrier("x", {}, alone)->poll().text == "enough");
  CHECK_THROWS_AS(c.decide(true, decision::all, alone), generation_closed);
}

struct device_transport : noting_transport {
  static constexpr bool moves_alone = true;
  using noting_transport::noting_transport;
};

TEST_CASE("a transport may ask for the operations of a rank alone", "[collective]") {
  notes seen;
  host_communicator<device_transport> c{second_of_three(), seen};
  float value = 0;
  c.all_reduce({&value, 1, dtype::f32}, reduction::sum, {{1}});
  CHECK(seen.submissions.size() == 1);
}

}  // namespace
}  // namespace troupe::collectives
