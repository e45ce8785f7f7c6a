#include "troupe/call.hpp"

#include <fmt/format.h>

namespace troupe {

void require_sendable(const value& v, const tensor_bytes* tensors, const std::string& what) {
  try {
    bytes_of_value(v, tensors);
  } catch (const std::invalid_argument& error) {
    throw user_error(errc::bad_usage,
                     fmt::format("{} cannot be sent to another process: {}", what, error.what()));
  }
}

namespace {

constexpr std::string_view prefix = "function \"";

[[noreturn]] void expected(const char* kind, const value& v) {
  throw std::invalid_argument(fmt::format("expected {}, got {}", kind, to_string(v)));
}

}  // namespace

namespace detail {

bool bool_of(const value& v) {
  if (const auto* x = v.get_if<bool>()) return *x;
  expected("a bool", v);
}

std::int64_t integer_of(const value& v, std::int64_t low, std::int64_t high) {
  const auto* x = v.get_if<std::int64_t>();
  if (x && low <= *x && *x <= high) return *x;
  throw std::invalid_argument(
      fmt::format("expected an integer from {} to {}, got {}", low, high, to_string(v)));
}

double real_of(const value& v) {
  if (const auto* x = v.get_if<double>()) return *x;
  if (const auto* x = v.get_if<std::int64_t>()) return static_cast<double>(*x);
  expected("a number", v);
}

const std::string& text_of(const value& v) {
  if (const auto* x = v.get_if<std::string>()) return *x;
  expected("a text", v);
}

}  // namespace detail

argument_list::argument_list(const value& all) {
  if (const auto* list = all.get_if<value_list>()) all_ = list->items;
}

void argument_list::require(const std::string& function, std::size_t count) const {
  if (all_.size() == count) return;
  throw user_error(errc::bad_usage,
                   fmt::format("the function \"{}\" takes {} arguments, and got {}", function,
                               count, all_.size()));
}

void argument_list::refuse(const std::string& function, std::size_t i, const char* why) {
  throw user_error(errc::bad_usage,
                   fmt::format("the function \"{}\": argument {}: {}", function, i + 1, why));
}

named_function::named_function(std::string name, body what, const tensor_bytes* tensors)
    : name_(std::move(name)), what_(std::move(what)), tensors_(tensors) {
  if (name_.empty()) throw user_error(errc::bad_usage, "a remote_function needs a name");
}

std::string named_function::identity() const { return fmt::format("{}{}\"", prefix, name_); }

bool named_function::is_identity(std::string_view text) { return text.starts_with(prefix); }

recipe_ptr named_function::recipe(value arguments) const {
  return make_call_recipe(
      [name = name_, what = what_, arguments = std::move(arguments),
       tensors = tensors_](rank_context& who) {
        auto result = what(who, argument_list{arguments});
        if (who.rank() == 0)
          require_sendable(result, tensors, fmt::format("the result of \"{}\"", name));
        return result;
      },
      {identity(), tensors_});
}

}  // namespace troupe
