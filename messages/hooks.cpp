#include "troupe/observer.hpp"

#include <array>
#include <ostream>
#include <utility>

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

namespace {

template <class H>
void move_in(hook_types& to, void* one) {
  to.emplace<H>(std::move(*static_cast<H*>(one)));
}

using move_function = void (*)(hook_types&, void*);

template <class... H>
constexpr std::array<move_function, sizeof...(H)> move_functions(const std::variant<H...>*) {
  return {&move_in<H>...};
}

}  // namespace

hook::hook() = default;
hook::hook(const hook& other) = default;
hook::hook(hook&& other) noexcept = default;
hook& hook::operator=(const hook& other) = default;
hook& hook::operator=(hook&& other) noexcept = default;
hook::~hook() = default;

hook::hook(std::size_t index, void* one) {
  static constexpr auto all = move_functions(static_cast<const hook_types*>(nullptr));
  all.at(index)(*this, one);
}

bool operator==(const hook& a, const hook& b) {
  return static_cast<const hook_types&>(a) == static_cast<const hook_types&>(b);
}

std::string_view name(const hook& h) {
  return h.visit([](const auto& x) { return std::decay_t<decltype(x)>::name; });
}

const position& where(const hook& h) {
  return h.visit([](const auto& x) -> const position& { return x.at; });
}

namespace {

struct extras {
  std::ostream& out;

  void operator()(const hooks::plain&) const {}
  void operator()(const hooks::fit_end& x) const {
    if (x.why != stop_reason::none) out << " by " << to_string(x.why);
  }
  void operator()(const hooks::load_checkpoint& x) const { out << " from " << x.path; }
  void operator()(const hooks::on_exception& x) const { out << " " << x.type << ": " << x.what; }
  void operator()(const hooks::teardown& x) const {
    out << (x.orderly ? " orderly" : " after a failure");
  }
  void operator()(const hooks::backward& x) const {
    out << " window " << x.window_first() << ".." << x.window_last()
        << (x.synchronize() ? " synchronize" : "");
  }
  void operator()(const hooks::clip_gradients& x) const {
    out << (x.how == hooks::clip_gradients::algorithm::norm ? " norm " : " value ") << x.limit;
  }
  void operator()(const hooks::optimizer_step& x) const { out << " closure of " << x.closure; }
  void operator()(const hooks::lr_scheduler_step& x) const {
    constexpr const char* kinds[] = {" every step", " every epoch", " plateau"};
    out << kinds[static_cast<std::size_t>(x.every)];
  }
  void operator()(const hooks::barrier& x) const { out << " " << x.label; }
  void operator()(const hooks::save_checkpoint& x) const {
    out << " after " << x.loop.steps << " steps";
  }
  void operator()(const hooks::restore_state& x) const {
    out << " from rank";
    for (const auto donor : x.donors) out << ' ' << donor;
  }
};

template <class... H>
std::vector<std::string_view> names_of(const std::variant<H...>*) {
  return {H::name...};
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
  if (at.split != 0) out << " split " << at.split;
  out << ')';
  h.visit(extras{out});
  return out;
}

const std::vector<std::string_view>& hook_names() {
  static const auto all = names_of(static_cast<const hook_types*>(nullptr));
  return all;
}

}  // namespace troupe
