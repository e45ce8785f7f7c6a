// Goal: logged values are reduced over ranks with the right weights, and ranks that disagree on
// names get an error.
#include "troupe/detail/metric_accumulator.hpp"

#include <cmath>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "troupe/failure.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;

namespace {

byte_exchange alone() {
  return [](std::span<const std::byte> mine) {
    return std::vector<std::vector<std::byte>>{{mine.begin(), mine.end()}};
  };
}

/// Exchanges bytes between threads: each rank returns with the bytes of all ranks.
struct thread_exchange {
  explicit thread_exchange(std::size_t ranks) : ranks(ranks), brought(ranks) {}

  std::vector<std::vector<std::byte>> exchange(std::size_t rank, std::span<const std::byte> mine) {
    std::unique_lock lock{mutex};
    brought[rank].assign(mine.begin(), mine.end());
    const auto round = rounds;
    if (++arrived == ranks) {
      given = brought;
      arrived = 0;
      ++rounds;
      all_here.notify_all();
    } else {
      all_here.wait(lock, [&] { return rounds != round; });
    }
    return given;
  }

  std::vector<std::string> reduce(std::vector<metric_accumulator>& books,
                                  std::vector<metrics>& into) {
    std::vector<std::string> said(ranks);
    std::vector<std::thread> threads;
    into.resize(ranks);
    for (std::size_t rank = 0; rank < ranks; ++rank)
      threads.emplace_back([&, rank] {
        try {
          into[rank] = books[rank].reduce(
              [&](std::span<const std::byte> mine) { return exchange(rank, mine); });
        } catch (const user_error& error) {
          said[rank] = error.what();
        }
      });
    for (auto& one : threads) one.join();
    return said;
  }

  std::mutex mutex;
  std::condition_variable all_here;
  std::size_t ranks;
  std::size_t arrived = 0;
  std::size_t rounds = 0;
  std::vector<std::vector<std::byte>> brought;
  std::vector<std::vector<std::byte>> given;
};

}  // namespace

TEST_CASE("means are weighted by count and sums and extremes are reduced as named") {
  metric_accumulator book;
  book.add("mean", 2.0 * 3, 3, log_reduction::mean);
  book.add("mean", 10.0 * 1, 1, log_reduction::mean);
  book.add("sum", 2, 1, log_reduction::sum);
  book.add("sum", 5, 1, log_reduction::sum);
  book.add("min", 4, 1, log_reduction::min);
  book.add("min", -4, 1, log_reduction::min);
  book.add("max", 4, 1, log_reduction::max);
  book.add("max", NAN, 1, log_reduction::max);
  book.add("of nothing", 0, 0, log_reduction::mean);
  auto reduced = book.reduce(alone());
  CHECK(std::isnan(reduced.at("max")));
  reduced.erase("max");
  CHECK(reduced == metrics{{"mean", 4.0}, {"sum", 7.0}, {"min", -4.0}});
  CHECK(book.empty());
  CHECK(book.reduce(alone()).empty());
}

TEST_CASE("a name has one reduction and must be a single line") {
  metric_accumulator book;
  book.add("a", 1, 1, log_reduction::mean);
  CHECK_THROWS_AS(book.add("a", 1, 1, log_reduction::sum), user_error);
  CHECK_THROWS_AS(book.add("", 1, 1, log_reduction::sum), user_error);
  CHECK_THROWS_AS(book.add("a\nb", 1, 1, log_reduction::sum), user_error);
}

TEST_CASE("a number with a count below 0 is refused") {
  metric_accumulator book;
  for (const auto count : {-1., std::nan("")})
    CHECK_THROWS_WITH(book.add("a", 1, count, log_reduction::mean),
                      Catch::Contains("log(\"a\"): its batch_size or count is"));
}

TEST_CASE("a rank that logged nothing takes part in the reduction of the others' names") {
  std::vector<metric_accumulator> books(3);
  books[0].add("loss", 1.0 * 2, 2, log_reduction::mean);
  books[2].add("loss", 4.0 * 4, 4, log_reduction::mean);
  books[0].add("worst", 7, 1, log_reduction::max);
  books[2].add("worst", 9, 1, log_reduction::max);
  std::vector<metrics> reduced;
  for (const auto& text : thread_exchange{3}.reduce(books, reduced)) CHECK(text.empty());
  for (const auto& one : reduced) CHECK(one == metrics{{"loss", 3.0}, {"worst", 9.0}});
}

TEST_CASE("ranks that logged different names all get an error listing the names of each rank") {
  std::vector<metric_accumulator> books(3);
  books[0].add("a", 1, 1, log_reduction::mean);
  books[0].add("b", 1, 1, log_reduction::mean);
  books[2].add("a", 1, 1, log_reduction::mean);
  std::vector<metrics> reduced;
  for (const auto& text : thread_exchange{3}.reduce(books, reduced))
    CHECK_THAT(text, Catch::StartsWith("rank 0 logged \"a\", \"b\"; rank 1 logged nothing; "
                                       "rank 2 logged \"a\""));
}

TEST_CASE("a rank that ran no step since the last reduction may log fewer names than the others") {
  std::vector<metric_accumulator> books(2);
  std::vector<metrics> reduced(2);
  for (const std::size_t rank : {0, 1}) books[rank].begin_batch(rank == 0);
  books[0].add("loss", 3, 1, log_reduction::mean);
  for (auto& book : books) book.add("rate", 0.5, 1, log_reduction::max);
  for (const auto& text : thread_exchange{2}.reduce(books, reduced)) CHECK(text.empty());
  for (const auto& one : reduced) CHECK(one == metrics{{"loss", 3}, {"rate", 0.5}});
  // The next reduction begins anew: both have samples, so both must log the same.
  for (auto& book : books) book.begin_batch(true);
  books[0].add("loss", 3, 1, log_reduction::mean);
  books[1].add("rate", 0.5, 1, log_reduction::max);
  for (const auto& text : thread_exchange{2}.reduce(books, reduced)) CHECK(!text.empty());
}

TEST_CASE("a rank without samples of some batches may lack names that other ranks agree on") {
  std::vector<metric_accumulator> books(3);
  std::vector<metrics> reduced(3);
  const auto begin = [&] {
    for (auto& book : books) book.begin_batch(true);
    for (const std::size_t rank : {0, 1, 2}) books[rank].begin_batch(rank < 2);
    for (auto& book : books) book.add("a", 1, 1, log_reduction::mean);
    books[0].add("b", 2, 1, log_reduction::mean);
  };
  begin();
  books[1].add("b", 4, 1, log_reduction::mean);
  for (const auto& text : thread_exchange{3}.reduce(books, reduced)) CHECK(text.empty());
  for (const auto& one : reduced) CHECK(one == metrics{{"a", 1}, {"b", 3}});
  begin();  // rank 1 lacks "b", and had samples
  for (const auto& text : thread_exchange{3}.reduce(books, reduced)) CHECK(!text.empty());
  for (auto& book : books) book.clear();
  begin();
  books[1].add("b", 4, 1, log_reduction::mean);
  books[2].add("c", 4, 1, log_reduction::mean);  // which no other rank logs
  for (const auto& text : thread_exchange{3}.reduce(books, reduced)) CHECK(!text.empty());
}

TEST_CASE("restored entries continue: rank 0 has the values and all ranks have the names") {
  metric_accumulator saved;
  saved.add("a", 6, 2, log_reduction::mean);
  std::vector<metric_accumulator> books(2);
  books[0].restore(saved.entries(), true);
  books[1].restore(saved.entries(), false);
  books[1].add("a", 10, 2, log_reduction::mean);
  std::vector<metrics> reduced;
  for (const auto& text : thread_exchange{2}.reduce(books, reduced)) CHECK(text.empty());
  CHECK(reduced[0] == metrics{{"a", 4.0}});
  CHECK(reduced[1] == reduced[0]);
}
