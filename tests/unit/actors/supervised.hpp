// A supervisor machine whose ranks a test plays: each function is a report of one rank or of all.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "actors/supervisor_machine.hpp"

namespace troupe {

struct supervised {
  explicit supervised(std::int32_t world = 3, std::int32_t max_restarts = 3, bool moves = false)
      : supervised(world, supervision::rules{.elastic = {.max_restarts = max_restarts},
                                             .processes = moves ? world : 0}) {}
  supervised(std::int32_t world, supervision::rules rules, std::int64_t resumed = 0)
      : machine(job_id{1}, world, derive({}), std::move(rules)) {
    supervision::begin all;
    all.resumed.steps = resumed;
    for (std::int32_t r = 0; r < world; ++r) {
      lives.push_back(incarnation_id{static_cast<std::uint64_t>(20 + r)});
      all.incarnations.push_back(lives.back());
    }
    on(all);
    for (std::int32_t r = 0; r < world; ++r) on(prepared{of(r)});
  }

  template <class Event>
  void on(Event e) {
    last = machine.on(e);
    for (const auto& a : last) {
      if (const auto* start = std::get_if<supervision::start_rank>(&a))
        lives.at(static_cast<std::size_t>(start->rank)) = start->incarnation;
      if (const auto* arm = std::get_if<supervision::arm>(&a)) newest_deadline = arm->id;
      if (const auto* order = std::get_if<supervision::send>(&a))
        if (const auto* close = std::get_if<close_generation>(&order->what)) over = close->last;
    }
  }
  fence of(std::int32_t rank, std::int64_t step = 0) const {
    fence at;
    at.job = job_id{1};
    at.generation = machine.generation();
    at.incarnation = lives.at(static_cast<std::size_t>(rank));
    at.step = step_id{step};
    return at;
  }
  void step(std::int64_t step) {
    for (std::int32_t r = 0; r < static_cast<std::int32_t>(lives.size()); ++r)
      on(step_done{of(r, step)});
  }
  void kill(std::int32_t rank, const std::string& signal = "SIGSEGV") {
    auto at = of(rank);
    at.generation = generation_id{};
    auto what = make_failure(failure_kind::signal, "killed");
    what.rank = rank;
    what.signal = signal;
    on(rank_failed{at, without_exception(what), true});
  }
  void raise(std::int32_t rank, errc code = errc::job_failed) {
    auto what = make_failure(failure_kind::exception, "bad");
    what.rank = rank;
    what.code = code;
    on(rank_failed{of(rank), without_exception(what)});
  }
  void close(std::int32_t rank, std::uint64_t point, std::int64_t steps,
             const std::string& digest = "same") {
    closed_generation m;
    m.at = of(rank, steps);
    m.last = over;
    m.digest = digest;
    m.held.number = point;
    m.held.loop.steps = steps;
    on(m);
  }
  template <class Order>
  std::vector<Order> orders() const {
    std::vector<Order> all;
    for (const auto& a : last)
      if (const auto* message = std::get_if<supervision::send>(&a))
        if (const auto* order = std::get_if<Order>(&message->what)) all.push_back(*order);
    return all;
  }
  std::vector<std::int32_t> started() const {
    std::vector<std::int32_t> all;
    for (const auto& a : last)
      if (const auto* start = std::get_if<supervision::start_rank>(&a)) all.push_back(start->rank);
    return all;
  }
  std::chrono::nanoseconds armed() const {
    for (auto a = last.rbegin(); a != last.rend(); ++a)
      if (const auto* x = std::get_if<supervision::arm>(&*a)) return x->delay;
    return {};
  }
  template <class Action>
  std::vector<Action> actions() const {
    std::vector<Action> all;
    for (const auto& a : last)
      if (const auto* one = std::get_if<Action>(&a)) all.push_back(*one);
    return all;
  }
  std::vector<lifecycle_kind> announced() const {
    std::vector<lifecycle_kind> all;
    for (const auto& a : actions<supervision::announce>()) all.push_back(a.what.event);
    return all;
  }
  void process(std::int32_t number, process_changed::change how) {
    on(process_changed{job_id{1}, number, how, {}, true});
  }
  void leave(std::int32_t number) { process(number, process_changed::change::leaves); }
  // All ranks vote for the next step, do the one after it, and return its point.
  void pause_at(std::int64_t step) {
    vote(step - 1);
    this->step(step);
    close_all(static_cast<std::uint64_t>(step) + 2, step);
  }
  void vote(std::int64_t step) {
    for (std::int32_t r = 0; r < static_cast<std::int32_t>(lives.size()); ++r)
      on(stop_vote{of(r, step)});
  }
  // The last answer restarts, so orders and starts are those of `last`.
  void close_all(std::uint64_t point, std::int64_t steps) {
    const auto at = machine.generation();
    for (std::int32_t r = 0; r < static_cast<std::int32_t>(lives.size()); ++r)
      if (machine.generation() == at) close(r, point, steps);
  }
  void prepare_all(std::int64_t steps) {
    for (std::int32_t r = 0; r < static_cast<std::int32_t>(lives.size()); ++r)
      on(prepared{of(r, steps), "same"});
  }
  std::uint64_t deadline() const { return newest_deadline; }

  std::vector<incarnation_id> lives;
  std::uint64_t newest_deadline = 0;
  bool over = false;  // the newest close_generation is the last one
  supervisor_machine machine;
  std::vector<supervision::action> last;
};

using ranks_of = std::vector<std::int32_t>;

}  // namespace troupe
