// One hook of any type: what runs are made of (troupe/detail/hook_types.hpp has the types).
#pragma once

#include "troupe/detail/hook_types.hpp"

#include <cstddef>
#include <ostream>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace troupe {

/// One hook, of any type: the std::variant of all of them, with shorter names for its queries. A
/// regular value.
struct hook : hook_types {
  using hook_types::hook_types;

  /// Whether it is one of `H...`.
  template <class... H>
  bool is() const {
    return (std::holds_alternative<H>(*this) || ...);
  }
  /// The hook as its own type, or null.
  template <class H>
  const H* get_if() const {
    return std::get_if<H>(static_cast<const hook_types*>(this));
  }
  /// Calls `what` with the hook as its own type.
  template <class F>
  decltype(auto) visit(F&& what) const {
    return std::visit(std::forward<F>(what), static_cast<const hook_types&>(*this));
  }

  friend bool operator==(const hook& a, const hook& b) {
    return static_cast<const hook_types&>(a) == static_cast<const hook_types&>(b);
  }
};

/// The hook's name as users write it.
std::string_view name(const hook& h);
/// Where it happens.
const position& where(const hook& h);
/// `on_train_batch_start(train epoch 0 step 3 batch 3)`, and what else the hook carries.
std::ostream& operator<<(std::ostream& out, const hook& h);
/// All names, in the order of the variant. For `--fault` and its error messages.
const std::vector<std::string_view>& hook_names();

}  // namespace troupe
