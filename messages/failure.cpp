#include "messages/failure.hpp"

#include "messages/control.hpp"

#include <cxxabi.h>
#include <fmt/format.h>

#include <cstdlib>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <typeinfo>
#include <utility>

namespace troupe {

namespace {

std::string demangled(const std::type_info& type) {
  int status = 0;
  std::unique_ptr<char, void (*)(void*)> text{
      abi::__cxa_demangle(type.name(), nullptr, nullptr, &status), std::free};
  return status == 0 ? std::string{text.get()} : std::string{type.name()};
}

// std::throw_with_nested throws a private type that derives from the user's: users want their own
// name.
std::string exception_name(const std::exception& error) {
  auto name = demangled(typeid(error));
  constexpr std::string_view prefix = "std::_Nested_exception<";
  if (name.starts_with(prefix) && name.ends_with('>'))
    name = name.substr(prefix.size(), name.size() - prefix.size() - 1);
  while (name.ends_with(' ')) name.pop_back();
  return name;
}

errc code_of(const std::exception& error) {
  if (const auto* users = dynamic_cast<const user_error*>(&error)) return users->code();
  return dynamic_cast<const internal_error*>(&error) ? errc::internal : errc::job_failed;
}

// Appends `error` and what it nests, outermost first; that one's code. Bound: a chain deeper than
// 64 is cut.
errc collect(const std::exception_ptr& error, std::vector<failure_cause>& into) {
  constexpr std::size_t depth_max = 64;
  if (!error || into.size() >= depth_max) return errc::job_failed;
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    into.push_back({exception_name(e), e.what()});
    if (const auto* nested = dynamic_cast<const std::nested_exception*>(&e))
      collect(nested->nested_ptr(), into);
    return code_of(e);
  } catch (...) {
    const auto* type = abi::__cxa_current_exception_type();
    into.push_back({type ? demangled(*type) : "unknown", "not a std::exception"});
    return errc::job_failed;
  }
}

}  // namespace

failure describe(const std::exception_ptr& error) {
  static const auto closed = demangled(typeid(generation_closed));
  std::vector<failure_cause> chain;
  failure result;
  result.code = collect(error, chain);
  if (chain.empty()) {
    result.type = "none";
    return result;
  }
  result.type = std::move(chain.front().type);
  result.what = std::move(chain.front().what);
  result.causes.assign(std::move_iterator{chain.begin() + 1}, std::move_iterator{chain.end()});
  result.follows = result.type == closed;
  return result;
}

std::exception_ptr exception_of(const failure& f) {
  if (f.code == errc::internal) return std::make_exception_ptr(internal_error(f.what));
  if (f.code != errc::job_failed) return std::make_exception_ptr(user_error(f.code, f.what));
  return std::make_exception_ptr(std::runtime_error(render(f)));
}

std::string render(const failure& f) {
  std::string text;
  if (f.rank >= 0) text += fmt::format("rank {} ", f.rank);
  text += f.hook.empty() ? "failed" : fmt::format("failed in {}", f.hook);
  if (f.step >= 0) text += fmt::format(" at step {}", f.step);
  text += fmt::format(": {}: {}", f.type, f.what);
  for (const auto& cause : f.causes)
    text += fmt::format("; caused by {}: {}", cause.type, cause.what);
  return text;
}

void job_outcome::rethrow() const {
  if (ok()) return;
  if (failed_with && failed_with->original) std::rethrow_exception(failed_with->original);
  if (failed_with) std::rethrow_exception(exception_of(failed_with->record));
  throw std::runtime_error("the job failed");
}

}  // namespace troupe
