#include "troupe/failure.hpp"

#include "messages/control.hpp"

#include <cxxabi.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <typeinfo>
#include <utility>

namespace troupe {

namespace {

// std::throw_with_nested throws a private type that derives from the user's: users want their own
// name.
std::string exception_name(const std::exception& error) {
  auto name = exception_types::name_of(typeid(error));
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

// A user's function: what() stands in for one that is null or throws.
std::string text_by(exception_text text, const std::exception& error) {
  if (!text) return error.what();
  try {
    return text(error);
  } catch (...) {
    return error.what();
  }
}

using chain = std::vector<failure_cause>;  // outermost first

errc collect(const std::exception_ptr& error, exception_text text, chain& into);

errc collect(const std::exception& error, exception_text text, chain& into) {
  into.push_back({exception_name(error), text_by(text, error)});
  if (const auto* nested = dynamic_cast<const std::nested_exception*>(&error))
    collect(nested->nested_ptr(), text, into);
  return code_of(error);
}

// Appends `error` and what it nests; its own code. Bound: a chain deeper than 64 is cut.
errc collect(const std::exception_ptr& error, exception_text text, chain& into) {
  constexpr std::size_t depth_max = 64;
  if (!error || into.size() >= depth_max) return errc::job_failed;
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return collect(e, text, into);
  } catch (...) {
    const auto* type = abi::__cxa_current_exception_type();
    into.push_back({type ? exception_types::name_of(*type) : "unknown", "not a std::exception"});
    return errc::job_failed;
  }
}

template <class Error>
failure described(const Error& error, exception_text text) {
  static const auto closed = exception_types::name_of(typeid(generation_closed));
  chain all;
  failure result;
  result.code = collect(error, text, all);
  if (all.empty()) {
    result.type = "none";
    return result;
  }
  result.follows = std::ranges::find(all, closed, &failure_cause::type) != all.end();
  result.type = std::move(all.front().type);
  result.what = std::move(all.front().what);
  result.causes.assign(std::move_iterator{all.begin() + 1}, std::move_iterator{all.end()});
  return result;
}

}  // namespace

std::string_view to_string(failure_kind kind) {
  switch (kind) {
    case failure_kind::exception: return "exception";
    case failure_kind::signal: return "signal";
    case failure_kind::exit: return "exit";
    case failure_kind::lost: return "lost";
    case failure_kind::start_failed: return "start_failed";
    case failure_kind::down: return "down";
    case failure_kind::deadline: return "deadline";
    case failure_kind::aborted: return "aborted";
    case failure_kind::session_closed: return "session_closed";
    case failure_kind::actor_error: return "actor_error";
    case failure_kind::unexpected_message: return "unexpected_message";
  }
  return "unknown";
}

std::string what_of(const std::exception& error) { return error.what(); }

failure describe(const std::exception_ptr& error, exception_text text) {
  return described(error, text);
}

failure describe(const std::exception& error, exception_text text) {
  return described(error, text);
}

failure make_failure(failure_kind kind, std::string what) {
  failure result;
  result.kind = kind;
  result.type = to_string(kind);
  result.what = std::move(what);
  return result;
}

std::string render(const failure& f) {
  std::string text;
  const auto add = [&text](auto&&... parts) { ((text += parts), ...); };
  if (f.rank >= 0) add("rank ", std::to_string(f.rank), " ");
  add("failed");
  if (!f.hook.empty()) add(" in ", f.hook);
  if (f.step >= 0) add(" at step ", std::to_string(f.step));
  add(": ", f.type, ": ", f.what);
  for (const auto& cause : f.causes) add("; caused by ", cause.type, ": ", cause.what);
  return text;
}

void job_outcome::rethrow() const {
  if (ok()) return;
  if (failed_with && failed_with->original) std::rethrow_exception(failed_with->original);
  if (failed_with) std::rethrow_exception(exception_types{}.make(failed_with->record));
  throw std::runtime_error("the job failed");
}

std::shared_ptr<const caught> without_exception(failure what) {
  return std::make_shared<const caught>(caught{std::move(what), nullptr});
}

}  // namespace troupe
