// A service that runs a function of its own on two ranks and follows what happens, in one loop.
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <iostream>
#include <troupe/call.hpp>
#include <troupe/session.hpp>

namespace asio = boost::asio;

asio::awaitable<void> follow(std::shared_ptr<troupe::event_stream> events) {
  while (const auto event = co_await events->async_next(asio::use_awaitable))
    if (const auto* life = std::get_if<troupe::seen::lifecycle>(event.get()))
      std::cout << to_string(life->event)
                << (life->rank < 0 ? "" : " " + std::to_string(life->rank)) << '\n';
}

asio::awaitable<void> work(troupe::session& session, std::shared_ptr<troupe::event_stream> events) {
  troupe::job job;
  job.purpose = troupe::stage::call;
  job.options.ranks = 2;
  job.recipe = troupe::call_recipe([](std::int32_t rank) { return 10 * (rank + 1); });
  job.events = events;
  const auto outcome = co_await session.async_run(std::move(job), asio::use_awaitable);
  std::cout << "rank 0 says " << outcome.result << '\n';
}

int main() {
  asio::io_context loop;
  troupe::session session{loop.get_executor()};
  const auto events = std::make_shared<troupe::event_stream>(loop.get_executor());
  asio::co_spawn(loop, follow(events), asio::detached);
  asio::co_spawn(loop, work(session, events), asio::detached);
  loop.run();
}
