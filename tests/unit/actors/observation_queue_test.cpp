// Goal: the queue before an observer keeps the order, and drops progress before hooks, never more.
#include "actors/observation_queue.hpp"

#include <string>

#include "tests/support/catch.hpp"

using namespace troupe;

namespace {

observation_ptr progress_at(std::int64_t step) {
  seen::progress what;
  what.at.step = step;
  return std::make_shared<const observation>(what);
}
observation_ptr hook_of(std::int32_t rank) {
  seen::hook what;
  what.rank = rank;
  return std::make_shared<const observation>(what);
}
observation_ptr metrics_at(std::int64_t step) {
  seen::metrics what;
  what.at.step = step;
  return std::make_shared<const observation>(what);
}

// p, h or m for the kind, and the step; for a hook its rank.
std::string text(const observation_ptr& one) {
  if (const auto* p = std::get_if<seen::progress>(&*one)) return "p" + std::to_string(p->at.step);
  if (const auto* h = std::get_if<seen::hook>(&*one)) return "h" + std::to_string(h->rank);
  return "m" + std::to_string(std::get<seen::metrics>(*one).at.step);
}

std::string text(const std::vector<observation_ptr>& all) {
  std::string line;
  for (const auto& one : all) line += (line.empty() ? "" : " ") + text(one);
  return line;
}

}  // namespace

TEST_CASE("observations of all kinds are taken in the order of their pushes", "[observations]") {
  observation_queue queue{true};
  CHECK(queue.push(hook_of(1)));
  CHECK_FALSE(queue.push(metrics_at(1)));
  queue.push(progress_at(1));
  queue.push(hook_of(2));
  queue.push(progress_at(2));
  CHECK(text(queue.take_one()) == "h1");
  CHECK(text(queue.take()) == "m1 p1 h2 p2");
  CHECK(queue.empty());
  CHECK(queue.take_one() == nullptr);
  CHECK(queue.push(progress_at(3)));
}

TEST_CASE("a full queue drops progress, then hooks, and never metrics", "[observations]") {
  observation_queue queue{true, 3};
  queue.push(hook_of(1));
  queue.push(progress_at(1));
  queue.push(progress_at(2));
  queue.push(metrics_at(3));
  queue.push(metrics_at(4));
  CHECK(queue.dropped() == dropped_observations{2, 0});
  queue.push(hook_of(5));
  CHECK(queue.dropped() == dropped_observations{2, 1});
  queue.push(metrics_at(6));
  queue.push(metrics_at(7));
  CHECK(queue.dropped() == dropped_observations{2, 2});
  CHECK(text(queue.take()) == "m3 m4 m6 m7");
}
