#include "apps/troupe/job_runner.hpp"

#include "apps/troupe/console.hpp"
#include "apps/troupe/control_socket.hpp"
#include "apps/troupe/exit_code.hpp"
#include "apps/troupe/metrics_server.hpp"
#include "troupe/session.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>

#include <csignal>
#include <cstdlib>
#include <optional>

namespace troupe::program {

namespace asio = boost::asio;

namespace {

bool ignores_hang_up() {
  struct sigaction now {};
  return ::sigaction(SIGHUP, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
}

// SIGINT, SIGTERM and SIGHUP. nohup starts the program with SIGHUP ignored, and it stays ignored.
struct loop_of_signals {
  loop_of_signals() {
    if (!ignores_hang_up()) signals.add(SIGHUP);
  }

  asio::io_context loop{1};
  asio::signal_set signals{loop, SIGINT, SIGTERM};
};

// Asio restores the default action of a signal with its last set. So this set is not destroyed at
// the end of the program.
std::unique_ptr<loop_of_signals>& late_signals() {
  static auto& kept = *new std::unique_ptr<loop_of_signals>;
  return kept;
}

void take_signals_back() {
  const bool ignored = ignores_hang_up();
  late_signals().reset();
  if (ignored) std::signal(SIGHUP, SIG_IGN);
}

}  // namespace

struct job_runner::state : loop_of_signals {
  state(ports world, std::function<void(int, int)> when_signalled)
      : notify(std::move(when_signalled)), front(loop.get_executor(), std::move(world)) {}

  std::function<void(int, int)> notify;
  session front;
  std::optional<control_socket> control;
  std::unique_ptr<http_server> metrics;
  job_handle running;
  int first = 0;
  int count = 0;
  bool stopping = false;
  bool at_once = false;

  void stop(bool now) {
    console::end_soon();
    stopping = true;
    at_once = at_once || now;
    if (now)
      running.abort("the program was asked to end at once");
    else
      running.stop();
  }

  void listen() {
    signals.async_wait([this](const boost::system::error_code& error, int number) {
      if (error) return;
      // A terminal that is closed sends SIGHUP twice or more: only the first one counts.
      if (number == SIGHUP && first != 0) return listen();
      if (first == 0) first = number;
      if (++count < 3) stop(count > 1);
      {
        const console::no_wait handler;
        notify(number, count);
      }
      // The third signal ends the program without a teardown. The exit code names the first one, as
      // that of a run does: Asio may exchange later signals that come before it handles them.
      if (count > 2) std::_Exit(exit_code_of_signal(first));
      listen();
    });
  }
};

job_runner::job_runner(ports world, std::function<void(int signal, int count)> notify) {
  take_signals_back();
  console::end_soon(false);
  std::signal(SIGPIPE, SIG_IGN);  // Ctrl-C ends the `tee` of a pipeline, too
  std::signal(SIGXFSZ, SIG_IGN);  // a file at its limit (ulimit -f) is an error, as on a full disk
  state_ = std::make_unique<state>(std::move(world), std::move(notify));
  state_->listen();
}

job_runner::~job_runner() = default;

void job_runner::serve(const std::string& folder,
                       std::function<std::string(const std::string& request)> answer) {
  state_->control.emplace(state_->loop, folder, [answer = std::move(answer)](const auto& request) {
    const console::no_wait handler;
    return answer(request);
  });
}

std::uint16_t job_runner::serve_metrics(std::uint16_t port, std::function<std::string()> text) {
  state_->metrics = program::serve_metrics(state_->loop, port, std::move(text));
  return state_->metrics->port();
}

void job_runner::serve_no_more() {
  state_->control.reset();
  state_->metrics.reset();
}

job_outcome job_runner::run(job what) {
  auto& s = *state_;
  const bool stopped_before = stopped();
  std::optional<job_outcome> outcome;
  s.front.async_run(with_handle(std::move(what), s.running),
                    [&](job_outcome done) { outcome = std::move(done); });
  if (stopped_before) s.stop(s.at_once);
  while (!outcome) s.loop.run_one();
  return std::move(*outcome);
}

void job_runner::stop(bool now) { state_->stop(now); }

void job_runner::scale(std::int32_t ranks) { state_->running.scale(ranks); }

int job_runner::signal() {
  state_->loop.poll();
  return state_->first;
}

bool job_runner::stopped() {
  state_->loop.poll();
  return state_->stopping;
}

bool job_runner::stopping() const { return state_->stopping; }

bool job_runner::ended_at_once() const { return state_->at_once; }

void job_runner::ignore_later_signals() { late_signals() = std::make_unique<loop_of_signals>(); }

}  // namespace troupe::program
