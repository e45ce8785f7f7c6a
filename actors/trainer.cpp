#include "troupe/trainer.hpp"

#include <boost/asio/system_executor.hpp>
#include <utility>

#include "troupe/session.hpp"

namespace troupe {

namespace {

job_outcome without_weights() {
  const auto why = std::make_exception_ptr(user_error(
      errc::bad_configuration,
      "the last fit of this trainer kept no weights to evaluate, because checkpoint.enabled is "
      "false: leave it true, and run_folder empty, which writes no file either"));
  job_outcome outcome;
  outcome.failed_with = std::make_shared<const caught>(caught{describe(why), why});
  return outcome;
}

}  // namespace

job_outcome trainer::run(stage purpose, recipe_ptr recipe) {
  const bool fits = purpose == stage::train;
  if (fits) begun_with_ = {context_.resume, context_.initial};
  // What the caller has set since the last fit says what to evaluate.
  const bool after_fit = !fits && begun_with_ == std::pair{context_.resume, context_.initial};
  if (after_fit && untrained_) return without_weights();
  session own{boost::asio::system_executor{}, world_};
  job what;
  static_cast<job_context&>(what) = context_;
  context_.events = nullptr;
  what.purpose = purpose;
  what.options = options_;
  what.recipe = std::move(recipe);
  if (after_fit && trained_) {
    what.initial = trained_;
    what.resume.reset();
  }
  auto outcome = own.run(std::move(what));
  if (!fits || !outcome.ok()) return outcome;
  // A fast_dev_run tries the code, whatever the weights are.
  untrained_ = !outcome.weights && options_.fast_dev_run == 0;
  trained_ = outcome.weights;
  return outcome;
}

}  // namespace troupe
