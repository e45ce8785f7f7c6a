#include "messages/hooks.hpp"

#include <array>
#include <ostream>

namespace troupe {

std::string_view to_string(stage s) {
  switch (s) {
    case stage::start: return "start";
    case stage::sanity: return "sanity";
    case stage::train: return "train";
    case stage::validate: return "validate";
    case stage::test: return "test";
    case stage::predict: return "predict";
    case stage::call: return "call";
  }
  return "unknown";
}

hook::hook() = default;
hook::hook(const hook&) = default;
hook::hook(hook&&) noexcept = default;
hook& hook::operator=(const hook&) = default;
hook& hook::operator=(hook&&) noexcept = default;
hook::~hook() = default;

bool operator==(const hook& a, const hook& b) {
  return static_cast<const any_hook&>(a) == static_cast<const any_hook&>(b);
}

std::string_view name(const hook& h) {
  return std::visit([](const auto& x) { return std::decay_t<decltype(x)>::name; }, h);
}

const position& where(const hook& h) {
  return std::visit([](const auto& x) -> const position& { return x.at; }, h);
}

namespace {

struct extras {
  std::ostream& out;

  void operator()(const hooks::plain&) const {}
  void operator()(const hooks::load_checkpoint& x) const { out << " from " << x.path; }
  void operator()(const hooks::setup_optimizers& x) const { out << (x.late ? " late" : ""); }
  void operator()(const hooks::process_dataloader&) const {}
  void operator()(const hooks::on_exception& x) const { out << " " << x.type << ": " << x.what; }
  void operator()(const hooks::teardown& x) const {
    out << (x.orderly ? " orderly" : " after a failure");
  }
  void operator()(const hooks::training_step& x) const {
    if (!x.hiddens.empty()) out << " hiddens " << x.hiddens;
  }
  void operator()(const hooks::backward& x) const {
    out << " window " << x.window_first << ".." << x.window_last
        << (x.synchronize ? " synchronize" : "");
    if (!x.arguments.empty()) out << " arguments " << x.arguments;
  }
  void operator()(const hooks::clip_gradients& x) const {
    out << (x.how == hooks::clip_gradients::algorithm::norm ? " norm " : " value ") << x.limit;
  }
  void operator()(const hooks::optimizer_step& x) const { out << " closure of " << x.closure; }
  void operator()(const hooks::lr_scheduler_step& x) const {
    constexpr const char* kinds[] = {" every step", " every epoch", " plateau"};
    out << kinds[static_cast<std::size_t>(x.every)];
  }
  void operator()(const hooks::reduce& x) const { out << " " << x.operation << " " << x.what; }
  void operator()(const hooks::broadcast& x) const { out << " from " << x.source << " " << x.what; }
  void operator()(const hooks::all_gather& x) const { out << " " << x.what; }
  void operator()(const hooks::reduce_boolean_decision& x) const {
    out << (x.all ? " all " : " any ") << (x.decision ? "yes" : "no");
  }
  void operator()(const hooks::barrier& x) const { out << " " << x.label; }
  void operator()(const hooks::save_checkpoint& x) const {
    out << " after " << x.loop.steps << " steps";
  }
  void operator()(const hooks::remove_checkpoint& x) const { out << " " << x.path; }
};

template <std::size_t... I>
std::vector<std::string_view> names_of(std::index_sequence<I...>) {
  return {std::variant_alternative_t<I, any_hook>::name...};
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const hook& h) {
  const auto& at = where(h);
  out << name(h) << '(' << at.stage;
  if (at.epoch != undefined) out << " epoch " << at.epoch;
  if (at.step != undefined) out << " step " << at.step;
  if (at.batch != undefined) out << " batch " << at.batch;
  if (at.dataloader != 0) out << " dataloader " << at.dataloader;
  if (at.optimizer != 0) out << " optimizer " << at.optimizer;
  out << ')';
  std::visit(extras{out}, h);
  return out;
}

const std::vector<std::string_view>& hook_names() {
  static const auto names = names_of(std::make_index_sequence<std::variant_size_v<any_hook>>{});
  return names;
}

}  // namespace troupe
