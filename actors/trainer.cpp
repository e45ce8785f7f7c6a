#include "troupe/trainer.hpp"

#include <boost/asio/system_executor.hpp>
#include <utility>

#include "troupe/session.hpp"

namespace troupe {

job_outcome trainer::run(stage purpose, recipe_ptr recipe) {
  session own{boost::asio::system_executor{}, world_};
  job what;
  static_cast<job_context&>(what) = context_;
  context_.events = nullptr;
  what.purpose = purpose;
  what.options = options_;
  what.recipe = std::move(recipe);
  if (purpose != stage::train && trained_) {
    what.initial = trained_;
    what.resume.reset();
  }
  auto outcome = own.run(std::move(what));
  if (purpose == stage::train && outcome.weights) trained_ = outcome.weights;
  return outcome;
}

}  // namespace troupe
