// A service with its own event loop, in which training is one more awaitable.
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <iostream>
#include <troupe/session.hpp>

#include "apps/examples/classifier_recipe.hpp"

namespace asio = boost::asio;

asio::awaitable<void> train(troupe::session& session) {
  troupe::job job;
  job.options = {.ranks = 2, .max_epochs = 2};
  job.recipe = classifier_recipe();
  auto outcome = co_await session.async_fit(std::move(job), asio::use_awaitable);
  if (outcome.failed_with) std::cout << troupe::render(outcome.failed_with->record) << '\n';
  if (outcome.ok()) std::cout << "train/loss " << outcome.last.at("train/loss") << '\n';
}

int main() {
  asio::io_context loop;
  troupe::session session{loop.get_executor()};
  asio::co_spawn(loop, train(session), asio::detached);
  loop.run();  // the service's other work runs in here
}
