// Goal: messages between actors on different hosts cross a simulated link and its faults:
// observations of ranks, and messages between a test's own actors.
#include <caf/event_based_actor.hpp>
#include <caf/send.hpp>
#include <map>

#include "tests/simulated/restarts.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

using milliseconds = std::chrono::milliseconds;

// Training steps that an observer has received, by rank.
using observed_steps = std::map<std::int32_t, std::vector<std::int64_t>>;

class step_listener final : public observer {
public:
  explicit step_listener(observed_steps& to) : to_(to) {}
  bool wants_hooks() const override { return true; }
  void on(const observation& what) override {
    const auto* x = std::get_if<seen::hook>(&what);
    if (x && name(x->what) == "training_step") to_[x->rank].push_back(where(x->what).step);
  }

private:
  observed_steps& to_;
};

std::vector<std::int64_t> first_steps(std::int64_t count) {
  std::vector<std::int64_t> all;
  for (std::int64_t i = 0; i < count; ++i) all.push_back(i);
  return all;
}

// Two actors on hosts 7 and 8: `writer` forwards what it receives; `reader` keeps it, and answers
// requests with what it has received so far.
struct correspondence {
  std::vector<std::int64_t> read;
  std::vector<std::int64_t> answers;
  std::vector<std::string> downs;
  caf::actor writer;
  caf::actor reader;
  simulation::node_id writes_at = 0;
  simulation::node_id reads_at = 0;

  explicit correspondence(simulation& in, std::uint32_t reader_host = 8) {
    reads_at = in.add_node(reader_host, "reader");
    writes_at = in.add_node(7, "writer");
    reader = in.system().spawn([this](caf::event_based_actor*) {
      return caf::behavior{[this](std::int64_t n) { read.push_back(n); },
                           [this](bool) { return static_cast<std::int64_t>(read.size()); }};
    });
    in.settle(caf::actor_cast<caf::strong_actor_ptr>(reader), reads_at);
    writer = in.system().spawn([this](caf::event_based_actor* self) { return writes(self); });
    in.settle(caf::actor_cast<caf::strong_actor_ptr>(writer), writes_at);
  }

  caf::behavior writes(caf::event_based_actor* self) {
    self->set_down_handler(
        [this](const caf::down_msg& m) { downs.push_back(to_string(m.reason)); });
    return {[this, self](const caf::actor& to) { to_ = to, self->monitor(to); },
            [this, self](std::int64_t n) { self->send(to_, n); },
            [this, self](bool) {
              self->request(to_, std::chrono::seconds{2}, true)
                  .then([this](std::int64_t n) { answers.push_back(n); },
                        [this](const caf::error&) { answers.push_back(-1); });
            }};
  }
  void end() {
    for (const auto& a : {writer, reader}) caf::anon_send_exit(a, caf::exit_reason::user_shutdown);
  }

private:
  caf::actor to_;
};

void run_for(simulation& in, std::chrono::nanoseconds span) {
  const auto until = in.time() + span;
  bool there = false;
  in.at(0, span, [&] { there = true; });
  while (!there && in.step()) continue;
  REQUIRE(in.time() == until);
}

// The two ends of a stream. Each message has 10 bytes, and a number.
struct connection {
  simulation in{choices::of_seed(1), {.schedule = scheduling::random}};
  std::shared_ptr<simulated_stream> stream;
  std::vector<std::uint64_t> got[2];
  std::vector<stream_end> ends[2];

  explicit connection(simulated_stream::settings how = {})
      : stream(std::make_shared<simulated_stream>(in, in.add_node(1, "near"), in.add_node(2, "far"),
                                                  how)) {
    for (const simulated_stream::side at : {0, 1})
      stream->open(at, {[this, at](stream_message&& m) { got[at].push_back(m.tag); },
                        [this, at](stream_end end) { ends[at].push_back(end); }});
  }
  bool send(simulated_stream::side from, std::uint64_t number, keep how = keep::always) {
    stream_message m;
    m.bytes.head.resize(10);
    m.how = how;
    m.tag = number;
    return stream->send(from, std::move(m));
  }
  void send_to_far(std::uint64_t first, std::uint64_t last) {
    for (auto n = first; n <= last; ++n) CHECK(send(0, n));
  }
};

std::vector<std::uint64_t> counted(std::uint64_t last) {
  std::vector<std::uint64_t> all;
  for (std::uint64_t n = 1; n <= last; ++n) all.push_back(n);
  return all;
}

}  // namespace

TEST_CASE("a cut of a stream holds messages back until it heals", "[simulated][links]") {
  connection c;
  run_for(c.in, milliseconds{150});
  c.send_to_far(1, 5);
  run_for(c.in, milliseconds{5});
  CHECK(c.got[1] == counted(5));
  c.stream->cut(simulated_stream::cut_of::near_to_far);
  c.send_to_far(6, 8);
  CHECK(c.send(1, 1));
  run_for(c.in, milliseconds{100});
  CHECK(c.got[1] == counted(5));
  CHECK(c.got[0] == counted(1));
  c.stream->cut(simulated_stream::cut_of::none);
  run_for(c.in, milliseconds{5});
  CHECK(c.got[1] == counted(8));
  run_for(c.in, std::chrono::seconds{5});  // heartbeats keep it open
  for (const auto& ends : c.ends) CHECK(ends.empty());
}

TEST_CASE("a process dies: messages that the path has not taken are lost", "[simulated][links]") {
  connection c{{.buffer = 35}};
  c.send_to_far(1, 2);
  run_for(c.in, milliseconds{5});
  c.stream->read_slowly(1, {.each = std::chrono::hours{1}, .buffer = 35});
  c.send_to_far(3, 9);  // of 10 bytes each
  c.stream->leave(0, stream_end::closed);
  c.stream->read_as_before(1);
  run_for(c.in, milliseconds{5});
  CHECK(c.got[1] == counted(5));
  CHECK(c.ends[1] == std::vector{stream_end::closed});
}

TEST_CASE("a lasting cut of a stream: the silent end is lost within the detection time",
          "[simulated][links]") {
  for (const bool both : {true, false}) {
    INFO("both " << both);
    connection c;
    run_for(c.in, milliseconds{250});
    c.stream->cut(both ? simulated_stream::cut_of::both : simulated_stream::cut_of::near_to_far);
    run_for(c.in, milliseconds{350});
    CHECK(c.ends[1].empty());
    run_for(c.in, milliseconds{260});
    CHECK(c.ends[1] == std::vector{stream_end::silent});
    CHECK(c.ends[0] == std::vector{both ? stream_end::silent : stream_end::reset});
    CHECK(c.stream->over());
  }
}

TEST_CASE("a broken stream ends at both ends; a process that dies ends it at the other end",
          "[simulated][links]") {
  connection broken;
  broken.stream->disconnect();
  run_for(broken.in, milliseconds{5});
  for (const auto& ends : broken.ends) CHECK(ends == std::vector{stream_end::reset});
  connection left;
  left.send_to_far(1, 3);
  left.stream->leave(0, stream_end::closed);  // its process has died
  run_for(left.in, milliseconds{5});
  CHECK(left.got[1] == counted(3));
  CHECK(left.ends[1] == std::vector{stream_end::closed});
  CHECK(left.ends[0].empty());
}

TEST_CASE("a reader that is too slow: messages are dropped, withdrawn, and then the stream ends",
          "[simulated][links]") {
  connection c{{.buffer = 100, .queue_limit = 20}};
  c.stream->cut(simulated_stream::cut_of::near_to_far);
  c.send_to_far(1, 10);
  CHECK(c.send(0, 11, keep::if_room));  // the path has taken all others
  CHECK_FALSE(c.send(0, 12, keep::if_room));
  CHECK(c.send(0, 13, keep::until_withdrawn));
  CHECK(c.stream->withdraw(0, 13));
  CHECK_FALSE(c.stream->withdraw(0, 13));
  CHECK_FALSE(c.stream->withdraw(0, 1));
  c.send_to_far(21, 29);
  CHECK(c.ends[0].empty());
  CHECK(c.send(0, 30));
  run_for(c.in, milliseconds{5});
  CHECK(c.ends[0] == std::vector{stream_end::full});
}

TEST_CASE("a reader that becomes slow: messages wait, both ends live, and all arrive",
          "[simulated][links]") {
  for (const simulated_stream::side at : {0, 1}) {
    connection c{{.detect = milliseconds{500}}};
    run_for(c.in, milliseconds{200});
    c.stream->read_slowly(at, {.each = milliseconds{300}, .buffer = 25, .queue_limit = 6});
    for (std::uint64_t n = 1; n <= 4; ++n) CHECK(c.send(1 - at, n));
    CHECK_FALSE(c.send(1 - at, 5, keep::if_room));
    CHECK(c.send(1 - at, 6, keep::until_withdrawn));
    CHECK(c.stream->withdraw(1 - at, 6));
    CHECK(c.send(at, 7));
    run_for(c.in, milliseconds{950});
    CHECK(c.got[at] == std::vector<std::uint64_t>{1, 2, 3});
    CHECK(c.got[1 - at] == std::vector<std::uint64_t>{7});  // that direction is as before
    run_for(c.in, milliseconds{2000});
    CHECK(c.got[at] == std::vector<std::uint64_t>{1, 2, 3, 4});
    CHECK(c.ends[0].empty());
    CHECK(c.ends[1].empty());

    for (std::uint64_t n = 10; n < 13; ++n) CHECK(c.send(1 - at, n));
    c.stream->read_as_before(at);
    run_for(c.in, milliseconds{1});
    CHECK(c.got[at].size() == 7);

    c.stream->read_slowly(at, {.each = milliseconds{300}, .buffer = 0, .queue_limit = 6});
    for (std::uint64_t n = 20; n < 27; ++n) CHECK(c.send(1 - at, n));
    run_for(c.in, milliseconds{1});
    CHECK(c.ends[1 - at] == std::vector<stream_end>{stream_end::full});
  }
}

TEST_CASE("link cut: an observer receives nothing of the rank until the link heals",
          "[simulated][links]") {
  for (const auto schedule : {scheduling::fifo, scheduling::random, scheduling::pct}) {
    INFO(to_string(schedule));
    observed_steps notified;
    scripted_simulation s{{.seed = 3, .schedule = schedule}};
    s.sim_job().before_start = [&](supervisor_setup& setup) {
      setup.what.observers.push_back([&] { return std::make_unique<step_listener>(notified); });
    };
    s.train({.ranks = 3, .steps = 40});
    REQUIRE(s.run_until([&] { return notified[1].size() == 5; }));
    const auto link = s.sim_job().life_of(1)->process->stream();
    link->cut(simulated_stream::cut_of::far_to_near);  // it receives but is not received
    const auto at_cut = notified[1];
    const auto others_at_cut = notified[2].size();
    run_for(s.in(), milliseconds{300});
    CHECK(notified[1] == at_cut);
    CHECK(notified[2].size() > others_at_cut + 5);
    CHECK(s.steps_of(1) > static_cast<std::int64_t>(at_cut.size()) + 5);
    link->cut(simulated_stream::cut_of::none);
    const auto behind = static_cast<std::size_t>(s.steps_of(1));
    REQUIRE(s.run_until([&] { return notified[1].size() >= behind; }));
    CHECK(s.run().ok());
    for (const auto& [rank, steps] : notified) CHECK(steps == first_steps(40));
  }
}

TEST_CASE("a rank is lost while a snapshot of rank 0 is arriving: rank 0 is waited for",
          "[simulated][links]") {
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    INFO("seed " << seed);
    restarting_job job{{.seed = seed, .checkpoint_every = 3}};
    REQUIRE(job.until(0, "save_checkpoint", 3));
    const auto link = job.script.sim_job().life_of(0)->process->stream();
    const auto before = link->attached(0);
    link->read_slowly(0, {.each = milliseconds{800}});
    job.script.crash(1);
    const auto began = job.script.in().time();
    REQUIRE(job.until(lifecycle_kind::generation_forming, 2));
    CHECK(link->attached(0) > before);
    CHECK(job.script.in().time() - began > milliseconds{2000});  // 4 D
    link->read_as_before(0);
    job.ends_well(2);
    for (const auto& l : job.life) CHECK(l.event != lifecycle_kind::survivor);
  }
}

TEST_CASE("messages between a test's actors cross a link in order, and so do answers",
          "[simulated][links]") {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    INFO("seed " << seed);
    scripted_simulation s{{.seed = seed, .schedule = scheduling::random}};
    s.train({.ranks = 2, .steps = 2});
    correspondence c{s.in()};
    caf::anon_send(c.writer, s.sim_job().linked(c.writer, c.reader));
    for (std::int64_t n = 0; n < 200; ++n) caf::anon_send(c.writer, n);
    caf::anon_send(c.writer, true);
    run_for(s.in(), std::chrono::seconds{3});
    CHECK(c.read == first_steps(200));
    CHECK(c.answers == std::vector<std::int64_t>{200});
    CHECK(s.sim_job().own_links().size() == 1);
    c.end();
    s.settle();
    CHECK(s.sim_job().own_links().empty());
    CHECK(s.in().actors() == 0);
  }
}

TEST_CASE("each direction of a test's link can be cut", "[simulated][links]") {
  scripted_simulation s{{.seed = 1}};
  correspondence c{s.in()};
  correspondence back{s.in(), 9};
  const auto there = s.sim_job().linked(c.writer, c.reader);
  CHECK(there != c.reader);
  CHECK(s.sim_job().linked(c.writer, c.reader) == there);
  CHECK(s.sim_job().linked(c.reader, c.writer) != c.writer);
  CHECK(s.sim_job().own_links().size() == 1);
  caf::anon_send(c.writer, there);
  const auto link = s.sim_job().own_links().front()->stream();
  const auto say = [&](std::int64_t n) {
    caf::anon_send(c.writer, n);
    run_for(s.in(), milliseconds{10});
  };
  say(0);
  CHECK(c.read == first_steps(1));
  link->cut(simulated_stream::cut_of::near_to_far);  // from the writer to the reader
  say(1);
  CHECK(c.read == first_steps(1));
  link->cut(simulated_stream::cut_of::far_to_near);  // messages arrive, answers do not
  run_for(s.in(), milliseconds{200});
  CHECK(c.read == first_steps(2));
  caf::anon_send(c.writer, true);
  run_for(s.in(), milliseconds{50});
  CHECK(c.answers.empty());
  link->cut(simulated_stream::cut_of::none);
  run_for(s.in(), milliseconds{300});
  CHECK(c.answers == std::vector<std::int64_t>{2});
  link->cut(simulated_stream::cut_of::both);
  run_for(s.in(), std::chrono::seconds{1});
  CHECK(c.downs.size() == 1);  // it was silent for too long
  CHECK(s.sim_job().own_links().empty());
  c.end(), back.end();
  s.settle();
}

TEST_CASE("actors on one host have no link; an actor that dies elsewhere is noticed",
          "[simulated][links]") {
  scripted_simulation s{{.seed = 1}};
  correspondence near{s.in(), 7};
  CHECK(s.sim_job().linked(near.writer, near.reader) == near.reader);
  CHECK(s.sim_job().own_links().empty());
  correspondence far{s.in()};
  caf::anon_send(far.writer, s.sim_job().linked(far.writer, far.reader));
  run_for(s.in(), milliseconds{150});  // both ends have sent a heartbeat
  s.in().crash(far.reads_at);
  caf::anon_send(far.writer, true);
  run_for(s.in(), milliseconds{300});
  CHECK(far.downs.empty());  // no report: only silence shows it
  run_for(s.in(), std::chrono::seconds{2});
  CHECK(far.downs.size() == 1);
  CHECK(far.answers == std::vector<std::int64_t>{-1});  // the request timed out
  near.end(), far.end();
  s.settle();
}
