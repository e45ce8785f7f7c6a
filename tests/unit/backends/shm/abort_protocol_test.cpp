// Goal: an abort that races with the end of an operation gives all ranks the same result, in every
// interleaving of two and three ranks.
// Method: exhaustive search over a model of meet, publish and end_closed (channel_steps.cpp), with
// one state per atomic access.
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "backends/shm/schedule.hpp"
#include "tests/unit/backends/shm/search.hpp"

#include "tests/support/catch.hpp"

namespace troupe::shm {
namespace {

constexpr std::size_t most_ranks = 3;

struct word {
  std::uint8_t steps = 0;
  bool closed = false;
  friend auto operator<=>(const word&, const word&) = default;
};

enum class phase : std::uint8_t { looking, publishing, rendezvous, closing, judging, ok, aborted };

// `closer`: the aborting rank closes the words of an operation one by one and then leaves.
struct ending_world {
  static inline std::size_t ranks = 2;
  static inline std::uint8_t steps = 1;
  // A simpler protocol that is wrong: a waiting rank that sees the abort word gives up at once.
  static inline bool simple = false;

  std::array<std::array<word, slot_sets>, most_ranks> words{};
  std::array<phase, most_ranks> at{};
  std::array<std::uint8_t, most_ranks> step{};  // steps published so far
  // index of the member or word that the rank looks at
  std::array<std::uint8_t, most_ranks> index{};
  bool aborted = false;
  std::uint8_t closer = 0;

  friend auto operator<=>(const ending_world&, const ending_world&) = default;

  word& word_of(std::size_t rank, std::uint8_t of_step) { return words[rank][of_step % slot_sets]; }
  std::uint8_t words_total() const { return static_cast<std::uint8_t>(ranks * slot_sets); }
  void close(std::uint8_t which) { words[which / slot_sets][which % slot_sets].closed = true; }
  bool all_reached() {
    for (std::size_t rank = 0; rank < ranks; ++rank)
      if (word_of(rank, static_cast<std::uint8_t>(steps - 1)).steps < steps) return false;
    return true;
  }

  std::vector<ending_world> successors() const {
    std::vector<ending_world> result;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      auto next = *this;
      if (next.go(rank)) result.push_back(next);
    }
    if (closer <= words_total()) {  // first the abort word, then one word after the other
      auto next = *this;
      if (closer == 0)
        next.aborted = true;
      else
        next.close(static_cast<std::uint8_t>(closer - 1));
      ++next.closer;
      result.push_back(next);
    }
    return result;
  }

  void enter(std::size_t rank, phase what) {
    at[rank] = what;
    index[rank] = 0;
  }

  // Returns false if the rank has finished or has to wait.
  bool go(std::size_t rank) {
    switch (at[rank]) {
      case phase::looking:  // before it works; the abort may come right after
        enter(rank, aborted ? phase::closing : phase::publishing);
        return true;
      case phase::publishing: {
        auto& mine = word_of(rank, step[rank]);
        if (mine.closed) {
          enter(rank, phase::closing);
        } else {
          mine.steps = ++step[rank];
          enter(rank, phase::rendezvous);
        }
        return true;
      }
      case phase::rendezvous: return meet(rank);
      case phase::closing:
        if (index[rank] == words_total())
          enter(rank, phase::judging);
        else
          close(index[rank]++);
        return true;
      case phase::judging:
        at[rank] = step[rank] == steps && all_reached() ? phase::ok : phase::aborted;
        return true;
      case phase::ok:
      case phase::aborted: break;
    }
    return false;
  }

  bool meet(std::size_t rank) {
    if (index[rank] == ranks) {
      enter(rank, step[rank] == steps ? phase::ok : phase::looking);
      return true;
    }
    const auto& theirs = word_of(index[rank], static_cast<std::uint8_t>(step[rank] - 1));
    if (theirs.steps >= step[rank]) {
      ++index[rank];
      return true;
    }
    if (simple && aborted) {
      enter(rank, phase::aborted);
      return true;
    }
    if (theirs.closed) enter(rank, phase::closing);
    return theirs.closed;
  }

  std::string violation(bool last) const {
    bool ok = false;
    bool lost = false;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      ok = ok || at[rank] == phase::ok;
      lost = lost || at[rank] == phase::aborted;
      if (last && at[rank] != phase::ok && at[rank] != phase::aborted)
        return "a rank waits for ever";
    }
    return ok && lost ? "ranks disagree on the end" : "";
  }
};

testing::search_result check(std::size_t ranks, std::uint8_t steps, bool simple = false) {
  ending_world::ranks = ranks;
  ending_world::steps = steps;
  ending_world::simple = simple;
  return testing::search(ending_world{});
}

TEST_CASE("abort races with completion: all ranks get the same result in every interleaving") {
  for (const std::uint8_t steps : {1, 2, 4}) {
    const auto two = check(2, steps);
    CHECK(two.violation.empty());
    CHECK(two.endings > 1);
  }
  const auto three = check(3, 1);
  CHECK(three.violation.empty());
  CHECK(three.states > 1000);
}

TEST_CASE("the search detects a rank that gives up as soon as it sees the abort word") {
  CHECK(check(2, 2, true).violation == "ranks disagree on the end");
}

}  // namespace
}  // namespace troupe::shm
