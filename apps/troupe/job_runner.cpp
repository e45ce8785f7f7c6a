#include "apps/troupe/job_runner.hpp"

#include "apps/troupe/exit_code.hpp"
#include "troupe/session.hpp"

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>

#include <csignal>
#include <cstdlib>
#include <optional>

namespace troupe::program {

namespace asio = boost::asio;

struct job_runner::state {
  state(ports world, std::function<void(int, int)> when_signalled)
      : notify(std::move(when_signalled)), front(loop.get_executor(), std::move(world)) {
    // nohup starts the program with SIGHUP ignored, and it stays ignored.
    struct sigaction before {};
    if (::sigaction(SIGHUP, nullptr, &before) == 0 && before.sa_handler != SIG_IGN)
      signals.add(SIGHUP);
  }

  asio::io_context loop{1};
  asio::signal_set signals{loop, SIGINT, SIGTERM};
  asio::cancellation_signal stop;
  std::function<void(int, int)> notify;
  session front;
  int first = 0;
  int count = 0;

  void listen() {
    signals.async_wait([this](const boost::system::error_code& error, int number) {
      if (error) return;
      // A terminal that is closed sends SIGHUP twice or more: only the first one counts.
      if (number == SIGHUP && first != 0) return listen();
      if (first == 0) first = number;
      notify(number, ++count);
      // The third signal ends the program without a teardown.
      if (count > 2) std::_Exit(exit_code_of_signal(number));
      stop.emit(asio::cancellation_type::partial);
      listen();
    });
  }
};

job_runner::job_runner(ports world, std::function<void(int signal, int count)> notify)
    : state_(std::make_unique<state>(std::move(world), std::move(notify))) {
  state_->listen();
}

job_runner::~job_runner() = default;

job_outcome job_runner::run(job what) {
  auto& s = *state_;
  const bool stopped_before = signal() != 0;
  std::optional<job_outcome> outcome;
  s.front.async_run(std::move(what),
                    asio::bind_cancellation_slot(
                        s.stop.slot(), [&](job_outcome done) { outcome = std::move(done); }));
  if (stopped_before) s.stop.emit(asio::cancellation_type::partial);
  while (!outcome) s.loop.run_one();
  return std::move(*outcome);
}

int job_runner::signal() {
  state_->loop.poll();
  return state_->first;
}

int job_runner::signals() {
  state_->loop.poll();
  return state_->count;
}

}  // namespace troupe::program
