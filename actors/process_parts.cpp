#include "actors/process_parts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "actors/job_check.hpp"

namespace troupe {

namespace {

// In place of a recipe that could not be made: the rank fails where its learner is made.
class no_recipe : public learner_recipe {
public:
  explicit no_recipe(std::exception_ptr why) : why_(std::move(why)) {}
  std::unique_ptr<learner> make(const learner_context&) const override {
    std::rethrow_exception(why_);
  }

private:
  std::exception_ptr why_;
};

// In place of a communicator that could not be joined: the rank fails when it opens it.
class no_communicator : public communicator_backend {
public:
  explicit no_communicator(std::exception_ptr why) : why_(std::move(why)) {}
  std::string_view name() const override { return "none"; }
  std::string unusable() const override { return "the ranks' processes could not connect"; }
  std::shared_ptr<communicator> open(const group_description&) override {
    std::rethrow_exception(why_);
  }

private:
  std::exception_ptr why_;
};

const named_function* function_of(const rank_process_options& home, const std::string& identity) {
  const auto found = std::ranges::find(home.functions, identity, &named_function::identity);
  return found != home.functions.end() ? &*found : nullptr;
}

recipe_ptr recipe_of(const rank_process_options& home, const std::string& text) {
  try {
    auto made = home.recipe ? home.recipe(text) : nullptr;
    if (!made)
      throw user_error(errc::bad_configuration,
                       "the program's run_rank_if_child has no recipe for its ranks");
    return made;
  } catch (...) {
    return std::make_shared<no_recipe>(std::current_exception());
  }
}

[[noreturn]] void refuse_call(const rank_process_options& home, const std::string& identity) {
  std::string known;
  for (const auto& one : home.functions)
    known += fmt::format("{}\"{}\"", known.empty() ? "" : ", ", one.name());
  throw user_error(errc::bad_configuration,
                   fmt::format("the program's run_rank_if_child does not know the {}: put it into "
                               "rank_process_options::functions, which holds {}",
                               identity, known.empty() ? "none" : known));
}

recipe_ptr recipe_of(const rank_process_options& home, const rank_spec& brief) {
  if (!named_function::is_identity(brief.recipe)) return recipe_of(home, brief.recipe);
  try {
    if (const auto* called = function_of(home, brief.recipe))
      return called->recipe(brief.arguments);
    refuse_call(home, brief.recipe);
  } catch (...) {
    return std::make_shared<no_recipe>(std::current_exception());
  }
}

std::shared_ptr<rendezvous_kind> kind_of(const ports& world, const std::string& name) {
  const auto found = std::ranges::find(world.rendezvous_kinds, name, &rendezvous_kind::name);
  if (found != world.rendezvous_kinds.end()) return *found;
  throw user_error(errc::device, fmt::format("a rank's process has no communicator \"{}\"", name));
}

std::shared_ptr<communicator_backend> join(const rendezvous_kind& kind, const rank_spec& brief,
                                           const std::vector<int>& descriptors) {
  if (auto joined = kind.join(brief.meets.address, descriptors)) return joined;
  throw user_error(errc::bad_usage,
                   fmt::format("the rendezvous kind \"{}\" joined no communicator: "
                               "rendezvous_kind::join returned null; return one, or throw the "
                               "reason",
                               kind.name()));
}

// "": unknown.
[[noreturn]] void refuse_recipe(const std::string& wanted, const std::string& is) {
  throw user_error(errc::bad_configuration,
                   fmt::format("the job's recipe is {}, but troupe::run_rank_if_child at the "
                               "beginning of main makes {}: give both the same module, data and "
                               "arguments",
                               wanted.empty() ? "of no known identity" : wanted,
                               is.empty() ? "one of no known identity" : is));
}

// Compares what is known of both.
recipe_ptr same_recipe(recipe_ptr made, const std::string& wanted) {
  try {
    const auto is = made->identity();
    if (!wanted.empty() && !is.empty() && is != wanted) refuse_recipe(wanted, is);
    return made;
  } catch (...) {
    return std::make_shared<no_recipe>(std::current_exception());
  }
}

}  // namespace

std::function<recipe_ptr(const std::string&)> rank_process_options::the_only_recipe(
    std::function<recipe_ptr()> make) {
  return [make = std::move(make)](const std::string& wanted) {
    auto made = make();
    if (const auto is = made ? made->identity() : std::string{}; is != wanted)
      refuse_recipe(wanted, is);
    return made;
  };
}

void process_parts::warm(const warm_up& needs) {
  if (recipe_ || named_function::is_identity(needs.recipe)) return;
  recipe_ = recipe_of(by_, needs.recipe);
  try {
    recipe_->warm_up(needs.options);
  } catch (...) {
    return;  // the first rank fails in the same way, and reports it
  }
}

recipe_ptr process_parts::recipe(const rank_spec& brief) {
  if (!recipe_) recipe_ = recipe_of(by_, brief);
  return same_recipe(recipe_, brief.identity);
}

process_parts::place process_parts::meet(const rank_spec& brief,
                                         const std::vector<int>& descriptors) {
  try {
    place made{by_.world(), nullptr};
    check_ports(made.world);
    const auto kind = kind_of(made.world, brief.meets.communicator);
    if (kind != joined_by_) communicators_ = join(*kind, brief, descriptors);
    joined_by_ = kind;
    made.communicators = communicators_;
    return made;
  } catch (...) {
    return {local_ports(), std::make_shared<no_communicator>(std::current_exception())};
  }
}

}  // namespace troupe
