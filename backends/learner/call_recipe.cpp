#include "troupe/call.hpp"

#include <fmt/format.h>

namespace troupe {

communicator& rank_context::collectives() const {
  if (!world_) throw internal_error("a spawned function ran before its generation was bound");
  return *world_;
}

bool rank_context::interrupted() const {
  return about_.attention_word && about_.attention_word->load() != attention::none;
}

namespace {

class caller final : public learner {
public:
  caller(const learner_context& about, spawned_function what)
      : about_(about), what_(std::move(what)) {}

  void bind(std::shared_ptr<communicator> world, generation_id) override {
    world_ = std::move(world);
  }

  hook_outcome on(const hook& h, const closure&) override {
    hook_outcome outcome;
    if (const auto* down = h.get_if<hooks::teardown>()) {
      if (down->orderly && about_.world > 1) world_->barrier("teardown")->wait();
      return outcome;
    }
    if (h.is<hooks::rewind, hooks::restore_state>())
      throw user_error(errc::job_failed,
                       "a spawned function keeps no point to return to: it begins anew");
    if (!h.is<hooks::dispatch>()) return outcome;
    rank_context context{about_, world_};
    result_ = what_(context);
    outcome.queued = context.take_queued();
    return outcome;
  }

  value result() override { return std::move(result_); }

private:
  learner_context about_;
  spawned_function what_;
  std::shared_ptr<communicator> world_;
  value result_;
};

class caller_recipe final : public learner_recipe {
public:
  caller_recipe(spawned_function what, call_identity is)
      : what_(std::move(what)), is_(std::move(is)) {
    if (!what_) throw user_error(errc::bad_usage, "spawn: there is no function to call");
  }
  std::unique_ptr<learner> make(const learner_context& context) const override {
    if (context.purpose != stage::call)
      throw user_error(errc::bad_usage,
                       fmt::format("the job's purpose is \"{}\", and its recipe calls a function: "
                                   "set the purpose to stage::call, or give it a module's recipe",
                                   to_string(context.purpose)));
    return std::make_unique<caller>(context, what_);
  }
  std::string identity() const override { return is_.name; }
  const tensor_bytes* tensors() const override { return is_.tensors; }

private:
  spawned_function what_;
  call_identity is_;
};

}  // namespace

recipe_ptr make_call_recipe(spawned_function what, call_identity is) {
  return std::make_shared<caller_recipe>(std::move(what), std::move(is));
}

}  // namespace troupe
