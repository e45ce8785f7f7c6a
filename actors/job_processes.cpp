#include "actors/job_processes.hpp"

#include <fmt/format.h>
#include <caf/send.hpp>

#include <optional>
#include <utility>

#include "actors/job_check.hpp"
#include "backends/entropy.hpp"

namespace troupe {

namespace {

// What arrives from a process. The launcher's thread holds no reference to the process itself: the
// destruction of a process waits for that thread.
class inbox {
public:
  inbox(job_id job, std::int32_t number, supervisor_actor supervisor)
      : job_(job), number_(number), supervisor_(std::move(supervisor)) {}

  void add(incarnation_id rank, process_sink sink) {
    std::unique_lock lock(guard_);
    if (const auto end = end_) {
      lock.unlock();
      if (sink.ended) sink.ended(*end);
      return;
    }
    ranks_.emplace(rank, std::make_shared<const process_sink>(std::move(sink)));
  }
  void remove(incarnation_id rank) {
    const std::lock_guard lock(guard_);
    ranks_.erase(rank);
  }
  bool ready() const {
    const std::lock_guard lock(guard_);
    return ready_;
  }
  bool ended() const {
    const std::lock_guard lock(guard_);
    return end_.has_value();
  }

  void receive(link_message&& m) {
    {
      const std::lock_guard lock(guard_);
      ready_ = true;
    }
    if (const auto* ready = std::get_if<process_ready>(&m))
      return change(ready->warm ? process_changed::change::warm : process_changed::change::ready);
    if (auto* leaves = std::get_if<process_leaves>(&m)) {
      failure why;
      why.what = std::move(leaves->why);
      return change(process_changed::change::leaves, std::move(why));
    }
    if (const auto sink = sink_of(m)) sink->received(std::move(m));
  }

  void end(process_end how) {
    std::map<incarnation_id, std::shared_ptr<const process_sink>> ranks;
    {
      const std::lock_guard lock(guard_);
      if (end_) return;
      how.given_up = how.given_up || killed_;
      end_ = how;
      ranks.swap(ranks_);
    }
    for (const auto& [id, sink] : ranks) sink->ended(how);
    change(process_changed::change::gone, std::move(how.what), how.clean || how.given_up);
  }
  void will_kill() {
    const std::lock_guard lock(guard_);
    killed_ = true;
  }

private:
  // The rank that a message is from. Messages without one are the same for all ranks of a process.
  struct sender {
    template <class M>
    std::optional<incarnation_id> operator()(const M& m) const {
      if constexpr (requires { m.at.incarnation; })
        return m.at.incarnation;
      else
        return std::nullopt;
    }
    std::optional<incarnation_id> operator()(const rank_ended& m) const { return m.rank; }
  };

  std::shared_ptr<const process_sink> sink_of(const link_message& m) const {
    const auto from = std::visit(sender{}, m);
    const std::lock_guard lock(guard_);
    const auto found = from ? ranks_.find(*from) : ranks_.begin();
    return found == ranks_.end() ? nullptr : found->second;
  }

  void change(process_changed::change how, failure what = {}, bool clean = false) {
    caf::anon_send(supervisor_, process_changed{job_, number_, how, std::move(what), clean});
  }

  const job_id job_;
  const std::int32_t number_;
  const supervisor_actor supervisor_;
  mutable std::mutex guard_;
  std::map<incarnation_id, std::shared_ptr<const process_sink>> ranks_;
  bool ready_ = false;
  bool killed_ = false;
  std::optional<process_end> end_;
};

}  // namespace

class job_processes::one : public job_process {
public:
  one(job_id job, std::int32_t number, const supervisor_actor& supervisor,
      std::chrono::nanoseconds grace)
      : inbox_(std::make_shared<inbox>(job, number, supervisor)), grace_(grace) {}

  void start(rank_launcher& launcher, process_start what) {
    try {
      auto started = launcher.start(std::move(what),
                                    {[in = inbox_](link_message&& m) { in->receive(std::move(m)); },
                                     [in = inbox_](process_end how) { in->end(std::move(how)); }});
      const std::lock_guard lock(guard_);
      process_ = std::move(started);
      placed_ = launcher.placed().has_value();
    } catch (const std::exception& error) {
      process_end how;
      how.what = make_failure(failure_kind::start_failed, error.what());
      inbox_->end(std::move(how));
    }
  }

  void add(incarnation_id rank, process_sink sink) override {
    {
      const std::lock_guard lock(guard_);
      ++ranks_;
      used_ = true;
    }
    inbox_->add(rank, std::move(sink));
  }
  bool remove(incarnation_id rank) override {
    const std::lock_guard lock(guard_);
    --ranks_;
    if (!ending_) inbox_->remove(rank);
    release_if_empty();
    return ending_;
  }
  void send(link_message what) override {
    if (const auto held = process()) held->send(std::move(what));
  }
  void kill() override {
    inbox_->will_kill();
    if (const auto held = process()) held->release(std::chrono::nanoseconds{0});
  }
  std::int64_t progress() const override {
    const auto held = process();
    return held ? held->progress() : 0;
  }
  std::int64_t snapshot_bytes() const override {
    const auto held = process();
    return held ? held->snapshot_bytes() : 0;
  }
  bool ready() const override { return inbox_->ready(); }

  void end() {
    const std::lock_guard lock(guard_);
    ending_ = true;
    release_if_empty();
  }

  // Closes the descriptors of the process if it has ended.
  void clear_if_ended() {
    if (!inbox_->ended()) return;
    std::shared_ptr<rank_process> last;  // destroyed without the lock
    const std::lock_guard lock(guard_);
    last.swap(process_);
  }

private:
  std::shared_ptr<rank_process> process() const {
    const std::lock_guard lock(guard_);
    return process_;
  }
  // A spare that no rank has lived in has nothing to end in order, and may still make its recipe.
  // One of a launcher could take no part in a later job if it was killed.
  void release_if_empty() {
    if (!ending_ || ranks_ > 0 || !process_) return;
    process_->release(used_ || placed_ ? grace_ : std::chrono::nanoseconds{0});
  }

  std::shared_ptr<inbox> inbox_;
  const std::chrono::nanoseconds grace_;
  mutable std::mutex guard_;  // guards the rest
  std::shared_ptr<rank_process> process_;
  int ranks_ = 0;
  bool used_ = false;    // a rank lives there, or has lived there
  bool placed_ = false;  // by a launcher
  bool ending_ = false;
};

job_processes::job_processes(const ports& world, job_id id, const job& what)
    : id_(id),
      world_(what.options.ranks),
      limits_(derive(what.options.time)),
      random_(world.random),
      launcher_(world.children),
      recipe_(what.recipe),
      needs_{what.options, what.recipe_text} {
  if (!launcher_)
    throw user_error(errc::bad_configuration,
                     "placement \"processes\": this program does not start processes for ranks; "
                     "use placement \"threads\"");
  if (const auto why_not = launcher_->unusable(); !why_not.empty())
    throw user_error(errc::bad_configuration, fmt::format("placement \"processes\": {}", why_not));
  const auto least = what.options.elastic.min_ranks;
  if (const auto placed = launcher_->placed(); placed && placed->number < least)
    throw user_error(errc::membership,
                     fmt::format("{} of the launcher's processes are left, and elastic.min_ranks "
                                 "is {}: they are not started again; start the job again",
                                 placed->number, least));
  const auto kind = choose_rendezvous(world, what.options.communicator.name, world_);
  const std::string name{kind->name()};
  place_ = kind->arrange({what.options.tcp_streams});
  if (!place_)
    throw user_error(
        errc::bad_usage,
        fmt::format("the rendezvous kind \"{}\" arranged none: rendezvous_kind::arrange "
                    "returned null; return one, or throw the reason",
                    name));
  meets_ = {name, place_->address()};
  descriptors_ = place_->descriptors();
  trace_ = std::make_shared<trace_queue>(what.trace && launcher_->has_threads());
}

job_processes::~job_processes() = default;

void job_processes::start(std::int32_t number, bool spare, const supervisor_actor& supervisor) {
  process_start what;
  what.who = {id_, number, world_, incarnation_id{random_->draw()}};
  what.descriptors = descriptors_;
  what.tensors = recipe_ ? recipe_->tensors() : nullptr;
  what.detect = limits_.detect;
  const auto born = std::make_shared<one>(id_, number, supervisor, limits_.teardown / 2);
  {
    const std::lock_guard lock(guard_);
    for (const auto& [earlier, one] : all_) one->clear_if_ended();
    all_[number] = born;
  }
  born->start(*launcher_, std::move(what));
  if (spare) born->send(needs_);
}

void job_processes::end(std::int32_t number) {
  std::shared_ptr<one> ending;
  {
    const std::lock_guard lock(guard_);
    if (const auto found = all_.find(number); found != all_.end()) ending = found->second;
  }
  if (ending) ending->end();
}

std::shared_ptr<job_process> job_processes::at(std::int32_t number) const {
  const std::lock_guard lock(guard_);
  return all_.at(number);
}

const rendezvous_info& job_processes::meets() const { return meets_; }

std::optional<placed_processes> job_processes::placed() const { return launcher_->placed(); }

}  // namespace troupe
