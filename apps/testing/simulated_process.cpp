#include "apps/testing/simulated_process.hpp"

#include <fmt/format.h>

#include <utility>

#include "apps/testing/message_text.hpp"

namespace troupe::testing {

namespace {

constexpr simulated_stream::side above = 0;  // the supervisor's program
constexpr simulated_stream::side below = 1;

class held_process final : public rank_process {
public:
  explicit held_process(std::shared_ptr<simulated_process> held) : held_(std::move(held)) {}
  ~held_process() override { held_->orphan(false); }
  void send(link_message what) override { held_->post(what); }
  void release(nanoseconds grace) override { held_->release(grace); }
  std::int64_t snapshot_bytes() const override { return held_->snapshot_bytes(); }

private:
  std::shared_ptr<simulated_process> held_;
};

class launcher final : public rank_launcher {
public:
  launcher(simulation& in, process_owner& owner, process_settings how)
      : simulation_(in), owner_(owner), how_(std::move(how)) {}

  std::unique_ptr<rank_process> start(process_start what, process_sink sink) override {
    if (how_.placed && what.who.number >= *how_.placed)
      throw internal_error(fmt::format("process {} is to be started, and a launcher started {}",
                                       what.who.number, *how_.placed));
    auto born = std::make_shared<simulated_process>(simulation_, owner_, how_, std::move(what),
                                                    std::move(sink));
    owner_.process_begins(born);
    born->start();
    return std::make_unique<held_process>(std::move(born));
  }
  std::optional<placed_processes> placed() const override {
    if (!how_.placed) return std::nullopt;
    return placed_processes{.number = *how_.placed, .outlive_loss = true};
  }
  bool has_threads() const override { return false; }

private:
  simulation& simulation_;
  process_owner& owner_;
  process_settings how_;
};

}  // namespace

std::shared_ptr<rank_launcher> simulated_launcher(simulation& in, process_owner& owner,
                                                  process_settings how) {
  return std::make_shared<launcher>(in, owner, std::move(how));
}

bool reaches_an_actor(const link_message& what) {
  return std::visit(
      []<class M>(const M&) {
        return requires(const M& m) { m.at; };
      },
      what);
}

void deliver(const link_message& what, const caf::strong_actor_ptr& to) {
  std::visit(
      [&]<class M>(const M& m) {
        if constexpr (requires { m.at; })
          to->enqueue(nullptr, caf::make_message_id(), caf::make_message(m), nullptr);
      },
      what);
}

simulated_process::simulated_process(simulation& in, process_owner& owner, process_settings how,
                                     process_start what, process_sink sink)
    : simulation_(in),
      owner_(owner),
      how_(std::move(how)),
      what_(std::move(what)),
      sink_(std::move(sink)),
      node_(owner.node_of(what_.who)) {
  how_.stream.detect = what_.detect;
  stream_ = std::make_shared<simulated_stream>(in, how_.parent, node_, how_.stream);
  home_.recipe = [recipe = how_.recipe](const std::string&) { return recipe; };
  home_.world = [this] { return owner_.world_of(settling_); };
}

void simulated_process::note(bool to_supervisor, const char* verb, const link_message& what) {
  const auto parent = static_cast<std::int32_t>(how_.parent);
  const auto mine = static_cast<std::int32_t>(node_);
  simulation_.note(to_supervisor ? mine : parent, to_supervisor ? parent : mine,
                   [&] { return std::string{verb} + short_text(what); });
}

// --- the supervisor's side -----------------------------------------------------------------------

void simulated_process::start() {
  simulation_.at(node_, nanoseconds{0}, [this] { begin(); });
  stream_->open(above, {[this](stream_message&& m) { receive_above(std::move(m)); },
                        [this](stream_end how) { ended_above(how); }});
}

void simulated_process::post(const link_message& what) {
  if (const auto* spec = std::get_if<rank_spec>(&what)) owner_.rank_comes(*this, *spec);
  note(false, "send ", what);
  stream_->send(above, {.bytes = pack(what, what_.tensors)});
}

void simulated_process::receive_above(stream_message&& m) {
  auto what = unpack(m.bytes.head, m.bytes.attachments, what_.tensors);
  note(true, "get ", what);
  if (reaches_an_actor(what) && owner_.holds_back(*this, true, what)) return;
  if (sink_.received) sink_.received(std::move(what));
}

// The process is on another host: when its connection ends, nothing else can be known of it.
void simulated_process::ended_above(stream_end how) {
  if (how == stream_end::closed && end_) return report(*end_);
  process_end lost;
  lost.what =
      make_failure(failure_kind::lost,
                   fmt::format("the connection to its process has ended ({})", to_string(how)));
  report(std::move(lost));
}

void simulated_process::report(process_end how) {
  auto sink = std::exchange(sink_, {});
  if (sink.ended) sink.ended(std::move(how));
}

void simulated_process::release(nanoseconds grace) {
  stream_->close(above);
  simulation_.after(how_.parent, grace, [this] {
    if (stream_->over(above)) return;
    stream_->leave(above, stream_end::reset);
    process_end how;
    how.given_up = true;
    report(std::move(how));
  });
}

void simulated_process::orphan(bool silently) {
  sink_ = {};
  if (silently)
    stream_->vanish(above);
  else
    stream_->leave(above, stream_end::reset);
}

// --- its own side --------------------------------------------------------------------------------

void simulated_process::begin() {
  host_ = std::make_unique<rank_host>(*this, home_, simulation_.system());
  stream_->open(below, {[this](stream_message&& m) { receive(std::move(m)); },
                        [this](stream_end how) { exit(how == stream_end::closed); }});
}

bool simulated_process::own_link::send(link_message what, keep how, std::uint64_t tag) {
  owner.note(true, "send ", what);
  return owner.stream_->send(below, {pack(what, owner.tensors_), how, tag, {}, 0});
}

void simulated_process::receive(stream_message&& m) {
  auto what = unpack(m.bytes.head, m.bytes.attachments, tensors_);
  note(false, "get ", what);
  if (reaches_an_actor(what) && owner_.holds_back(*this, false, what)) return;
  if (std::holds_alternative<rank_spec>(what)) return settle(std::move(what));
  host_->receive(std::move(what));
}

// The rank's own actor is the last one that its host spawns.
void simulated_process::settle(link_message&& what) {
  settling_ = std::get<rank_spec>(what).incarnation;
  const simulation::spawn_scope spawned{simulation_, node_};
  host_->receive(std::move(what));
  if (spawned.newest()) owner_.rank_lives(settling_, spawned.newest());
}

// Follows `live` in actors/rank_process.cpp: without an order to end, or before its ranks have
// ended, the process ends without cleanup.
void simulated_process::exit(bool closed) {
  process_end how;
  how.clean = closed && host_->ended();
  how.what = make_failure(failure_kind::exit, how.clean ? "" : "exit code 1");
  end(std::move(how), how.clean ? "exit" : "exit 1");
  stream_->leave(below, stream_end::closed);
}

void simulated_process::die(bool host_too) {
  if (end_) return;
  process_end how;
  how.what = make_failure(failure_kind::signal, "");
  how.what.signal = "SIGKILL";
  for (const auto& [rank, what] : entered_)
    how.hooks.push_back({rank, std::string{name(what)}, where(what).epoch, where(what).step});
  end(std::move(how), "crash");
  if (host_too)
    stream_->vanish(below);
  else
    stream_->leave(below, stream_end::closed);
}

bool simulated_process::leave() {
  if (!host_) return false;
  simulation_.at(node_, nanoseconds{0}, [this] {
    if (host_) link_.send(process_leaves{"SIGTERM"}, keep::always, 0);
  });
  return true;
}

void simulated_process::end(process_end how, const char* note) {
  end_ = std::move(how);
  owner_.process_ends(node_);
  simulation_.crash(node_, note);
  host_.reset();
}

}  // namespace troupe::testing
