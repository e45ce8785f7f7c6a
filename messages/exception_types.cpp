#include "troupe/failure.hpp"

#include <cxxabi.h>

#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <type_traits>

namespace troupe {

namespace {

template <class E>
bool is(const std::string& type) {
  static const auto name = exception_types::name_of(typeid(E));
  return type == name;
}

// The first of `E` that has the name `what.type`, or null.
template <class... E>
std::exception_ptr first_of(const failure_cause& what, const std::exception_ptr& nested) {
  std::exception_ptr made;
  (void)((is<E>(what.type) && (made = exception_types::thrown(E(what.what), nested))) || ...);
  return made;
}

std::exception_ptr standard(const failure_cause& what, const std::exception_ptr& nested) {
  return first_of<std::runtime_error, std::range_error, std::overflow_error, std::underflow_error,
                  std::logic_error, std::invalid_argument, std::domain_error, std::length_error,
                  std::out_of_range>(what, nested);
}

}  // namespace

std::string exception_types::name_of(const std::type_info& type) {
  int status = 0;
  std::unique_ptr<char, void (*)(void*)> text{
      abi::__cxa_demangle(type.name(), nullptr, nullptr, &status), std::free};
  return status == 0 ? std::string{text.get()} : std::string{type.name()};
}

std::exception_ptr exception_types::known(const failure_cause& what,
                                          const std::exception_ptr& nested) const {
  const auto own = makers_.find(what.type);
  if (own == makers_.end()) return standard(what, nested);
  try {
    return own->second(what.what, nested);
  } catch (...) {
    return nullptr;
  }
}

// Innermost first, because each exception is thrown while its cause is handled.
std::exception_ptr exception_types::causes_of(const failure& f) const {
  std::exception_ptr inner;
  for (auto cause = f.causes.rbegin(); cause != f.causes.rend(); ++cause) {
    auto made = known(*cause, inner);
    if (!made) made = thrown(std::runtime_error(cause->type + ": " + cause->what), inner);
    inner = std::move(made);
  }
  return inner;
}

std::exception_ptr exception_types::make(const failure& f) const {
  const auto nested = causes_of(f);
  if (f.kind == failure_kind::exception)
    if (auto made = known({f.type, f.what}, nested)) return made;
  if (f.code == errc::internal) return thrown(internal_error(f.what), nested);
  if (f.code != errc::job_failed) return thrown(user_error(f.code, f.what), nested);
  return thrown(std::runtime_error(render(f)), nested);
}

}  // namespace troupe
