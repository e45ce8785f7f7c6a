#include "troupe/trainer.hpp"

#include <boost/asio/system_executor.hpp>

#include "troupe/session.hpp"

namespace troupe {

job_outcome trainer::run(stage purpose, recipe_ptr recipe) {
  session own{boost::asio::system_executor{}};
  job what;
  what.purpose = purpose;
  what.options = options_;
  what.recipe = std::move(recipe);
  what.run_folder = around_.run_folder;
  what.resume = around_.resume;
  what.initial = around_.initial;
  what.observers = around_.observers;
  what.trace = around_.trace;
  if (purpose != stage::train && trained_) {
    what.initial = trained_;
    what.resume.reset();
  }
  auto outcome = own.run(std::move(what));
  if (purpose == stage::train && outcome.weights) trained_ = outcome.weights;
  return outcome;
}

}  // namespace troupe
