#include "apps/bench/recovery.hpp"

#include "apps/bench/timing.hpp"
#include "troupe/detail/data_order.hpp"
#include "troupe/failure.hpp"
#include "troupe/session.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>

namespace troupe::program {

namespace {

namespace asio = boost::asio;
namespace fs = std::filesystem;

constexpr int steps_between = 20;  // from one recovery to the next kill

std::string text_of(const fs::path& path) {
  std::ifstream file{path, std::ios::binary};
  return {std::istreambuf_iterator<char>{file}, {}};
}

// In /proc/PID/stat the parent is the second field after the name, which ends with the last ')'.
bool is_child(const fs::path& process) {
  const auto stat = text_of(process / "stat");
  const auto end = stat.rfind(')');
  if (end == std::string::npos || end + 4 > stat.size()) return false;
  pid_t parent = 0;
  std::from_chars(stat.data() + end + 4, stat.data() + stat.size(), parent);
  return parent == ::getpid();
}

// The child whose command line begins with PROGRAM --troupe-rank NUMBER, with the lowest number: it
// is no spare. 0: there is none.
pid_t oldest_process() {
  const auto wanted = std::string{"--troupe-rank"} + '\0';
  pid_t oldest = 0;
  std::int32_t lowest = std::numeric_limits<std::int32_t>::max();
  std::error_code gone;
  for (const auto& one : fs::directory_iterator{"/proc", gone}) {
    pid_t pid = 0;
    const auto name = one.path().filename().string();
    std::from_chars(name.data(), name.data() + name.size(), pid);
    if (pid <= 0 || !is_child(one.path())) continue;
    const auto words = text_of(one.path() / "cmdline");
    const auto first = words.find('\0');
    if (first == std::string::npos || words.compare(first + 1, wanted.size(), wanted) != 0)
      continue;
    std::int32_t number = 0;
    std::from_chars(words.data() + first + 1 + wanted.size(), words.data() + words.size(), number);
    if (number < lowest) lowest = number, oldest = pid;
  }
  return oldest;
}

// Kills and measures. Used by the thread of the loop, but for `watch`.
class killer {
public:
  killer(const recovery_question& question, std::function<void()> stop)
      : rounds_(question.rounds), pause_(question.pause), stop_(std::move(stop)) {}

  void see(const seen::lifecycle& what, double now) {
    if (what.event == lifecycle_kind::generation_active) trained_ = 0, active_ = now;
    if (what.event != lifecycle_kind::rank_failed || !killed_) return;
    known.push_back(1000 * (now - *killed_));
    killed_.reset();
    trained_.reset();
  }
  void see(const seen::progress&, double now) {
    if (killed_ || !trained_ || ++*trained_ < steps_between || now - active_ < pause_) return;
    if (round_ == rounds_) return std::exchange(stop_, [] {})();
    ++round_;
    const auto pid = oldest_process();
    killed_ = bench_now();
    if (pid == 0 || ::kill(pid, SIGKILL) != 0)
      throw internal_error("bench recovery: a rank has no process");
  }
  void see(const seen::hook&, double) {}
  void see(const seen::collective&, double) {}
  void see(const seen::metrics&, double) {}

  std::vector<double> known;  // milliseconds

private:
  int rounds_, round_ = 0;
  double pause_;
  double active_ = 0;
  std::function<void()> stop_;
  std::optional<int> trained_;  // observed steps of an active generation
  std::optional<double> killed_;
};

// Passes observations, with the time at which they arrive, to the thread of the loop.
class watch : public observer {
public:
  watch(asio::io_context& loop, killer& to) : loop_(loop), to_(to) {}
  void on(const observation& what) override {
    asio::post(loop_, [&to = to_, what, now = bench_now()] {
      std::visit([&](const auto& one) { to.see(one, now); }, what);
    });
  }

private:
  asio::io_context& loop_;
  killer& to_;
};

// How often the final weights have used each sample.
std::vector<std::int64_t> consumed(const snapshot& weights, std::int64_t each_step) {
  const auto found = std::ranges::find(weights.model, recovery_ledger, &tensor_blob::name);
  if (found == weights.model.end()) throw internal_error("bench recovery: no ledger");
  std::vector<float> sums(found->bytes->size() / sizeof(float));
  std::memcpy(sums.data(), found->bytes->data(), sums.size() * sizeof(float));
  std::vector<std::int64_t> counts;
  for (const auto sum : sums)
    counts.push_back(std::llround(sum * static_cast<double>(each_step) / recovery_rate));
  return counts;
}

// How often the data order has used each sample up to this place of a run.
std::vector<std::int64_t> ordered(const trainer_options& options, const loop_state& at,
                                  std::int64_t samples) {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(samples), at.epoch);
  if (at.batch == 0) return counts;
  const data_layout layout{samples, options.ranks, options.batch_size};
  const auto order = permutation(options.seed, at.epoch, samples);
  for (const auto one :
       std::span{order}.first(static_cast<std::size_t>(layout.of_batches(0, at.batch - 1).count)))
    ++counts[static_cast<std::size_t>(one)];
  return counts;
}

void read_ledger(const job_outcome& outcome, const trainer_options& options, std::int64_t samples,
                 recovery_figures& figures) {
  if (!outcome.weights) throw internal_error("bench recovery: the job has no weights");
  const auto used = consumed(*outcome.weights, options.ranks * options.batch_size);
  const auto due = ordered(options, outcome.loop, samples);
  for (std::size_t i = 0; i < due.size(); ++i) {
    figures.samples_lost += std::max<std::int64_t>(0, due[i] - used.at(i));
    figures.samples_doubled += std::max<std::int64_t>(0, used.at(i) - due[i]);
  }
}

}  // namespace

recovery_figures bench_recovery(const recovery_question& question, job what, ports world) {
  asio::io_context loop{1};
  asio::cancellation_signal stop;
  const auto options = what.options;
  killer kills{question, [&] { stop.emit(asio::cancellation_type::partial); }};
  what.observers.push_back([&] { return std::make_unique<watch>(loop, kills); });
  session front{loop.get_executor(), std::move(world)};
  std::optional<job_outcome> outcome;
  front.async_run(std::move(what), asio::bind_cancellation_slot(stop.slot(), [&](job_outcome done) {
                    outcome = std::move(done);
                  }));
  while (!outcome) loop.run_one();
  outcome->rethrow();
  const auto& all = outcome->generations;
  if (all.size() != kills.known.size() + 1 || std::ssize(kills.known) != question.rounds)
    throw user_error(errc::job_failed,
                     fmt::format("{} ranks were killed, and the job formed {} generations: it lost "
                                 "ranks by itself",
                                 question.rounds, all.size()));
  recovery_figures figures;
  figures.known = kills.known;
  for (std::size_t i = 1; i < all.size(); ++i) {
    const auto& t = all[i].milliseconds;
    figures.released.push_back(kills.known[i - 1] + t.detect + t.abort);
    figures.next_step.push_back(figures.released.back() + t.form + t.first_step);
    figures.steps_redone += all[i].steps_redone;
  }
  read_ledger(*outcome, options, question.samples, figures);
  return figures;
}

}  // namespace troupe::program
