// Failures: the record of what went wrong, and the exceptions that Troupe throws. Plain values:
// every function here is thread-safe.
#pragma once

#include "troupe/detail/ids.hpp"

#include <compare>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <typeinfo>
#include <utility>
#include <vector>

namespace troupe {

/// What a user can fix. The numbers are the exit codes of the `troupe` program.
enum class errc : std::uint8_t {
  job_failed = 1,         ///< any other failure of a job: a hook threw, for example
  bad_usage = 2,          ///< a call, a flag or an argument
  bad_configuration = 3,  ///< an option's value, or options that do not fit together
  membership = 4,         ///< ranks or their processes are missing
  checkpoint = 5,         ///< a checkpoint cannot be read, written or resumed
  device = 6,             ///< a device is missing or cannot be used
  internal = 70,          ///< a broken invariant of Troupe: report it
};

/// One exception of a nested chain.
struct failure_cause {
  std::string type;  ///< the C++ exception's name, demangled
  /// Its message, without the nested ones.
  std::string what;
  friend bool operator==(const failure_cause&, const failure_cause&) = default;
};

/// What a failure is. The list is complete. Except for `exception`, `failure::type` is the kind's
/// name (to_string).
enum class failure_kind : std::uint8_t {
  exception,       ///< an exception was thrown; `type` is its C++ name
  signal,          ///< a signal ended the rank's process
  exit,            ///< the rank's process ended by itself
  lost,            ///< the connection to the rank's process ended
  start_failed,    ///< the rank could not be started
  down,            ///< an actor ended without a report
  deadline,        ///< a rank, or the forming of a generation, took longer than its limit
  aborted,         ///< the caller ended the job at once
  session_closed,  ///< the session was destroyed while the job ran
  actor_error,     ///< CAF reported an error to an actor; `actor_error_handler` only receives it
  unexpected_message,  ///< an actor received a message that it does not know; likewise
};
/// The enumerator's name.
std::string_view to_string(failure_kind kind);

/// Names one failure of a job. The rank or the supervisor that records the failure draws the id,
/// and the id stays with the record on its way to the caller.
struct failure_id {
  incarnation_id incarnation;  ///< the life of the rank; 0: the supervisor
  std::uint64_t sequence = 0;  ///< counts the failures of that life from 1; 0: no id yet

  /// Whether there is an id.
  explicit operator bool() const { return sequence != 0; }
  friend auto operator<=>(const failure_id&, const failure_id&) = default;
};

/// The record of one failure, made once, where the failure happened. `type` is the C++ exception's
/// name, or the name of its kind. Undefined numbers are -1, undefined names are empty.
///
/// The first cause of a job is the failure with the least (generation, step, sequence). Failures
/// that followed from it are in its `others`. Wall clocks never order failures.
struct failure {
  /// Decides what `type` means.
  failure_kind kind = failure_kind::exception;
  /// None until the failure is recorded in a job.
  failure_id id = {};
  /// Demangled for an exception; else the kind's name.
  std::string type;
  /// The message, for people.
  std::string what;
  /// The rank where it happened; -1: no rank's.
  std::int32_t rank = -1;
  /// The name of the hook in which it happened; empty: in none.
  std::string hook;
  /// The epoch and step of that hook; -1: none.
  /// @{
  std::int64_t epoch = -1;
  std::int64_t step = -1;
  /// @}
  /// 0: before the first one.
  std::uint64_t generation = 0;
  std::uint64_t sequence = 0;  ///< hook run of the rank in which it happened
  /// A user_error's code, wherever it was thrown; `internal` for an internal_error.
  errc code = errc::job_failed;
  /// As `SIGKILL`, or `signal 64` without a name; empty unless a signal is the reason.
  std::string signal;
  std::vector<failure_cause> causes;  ///< nested exceptions, outermost first
  std::vector<failure> others;        ///< failures that followed
  /// True when this rank failed only because another rank did: its exception, or one that it nests,
  /// is generation_closed. Never a first cause while any other failure is known.
  bool follows = false;

  friend bool operator==(const failure&, const failure&) = default;
};

/// A failure with the exception itself. `original` is null in any process but the one where the
/// failure happened.
struct caught {
  /// Always there.
  failure record;
  /// For job_outcome::rethrow; null: the failure is another process's, or no exception.
  std::exception_ptr original;
};
/// A failure of which there is no exception in this process.
std::shared_ptr<const caught> without_exception(failure what);

/// Returns the text of an exception for its record. Needed for libraries whose what() holds more
/// than the message (c10::Error adds the frames of the stack). what() stands in for a function that
/// is null or throws.
using exception_text = std::string (*)(const std::exception& error);
/// what().
std::string what_of(const std::exception& error);

/// Records `error`: demangled type, text, code, nested causes. Position fields and id stay
/// undefined.
failure describe(const std::exception_ptr& error, exception_text text = what_of);
/// The same for an exception that the caller has just caught and that is not thrown again.
failure describe(const std::exception& error, exception_text text = what_of);
/// A failure that is no exception: `kind`, with the kind's name as type.
failure make_failure(failure_kind kind, std::string what);
/// One line for people: `rank 1 failed in training_step at step 12: std::runtime_error: disk full`.
std::string render(const failure& f);

/// Thrown in a lane that waits for a collective of a generation that has ended. Strategies and
/// modules do not catch it; the runtime records it as a failure that follows from another.
class generation_closed : public std::exception {
public:
  /// `why`: what ended the generation.
  explicit generation_closed(std::string why) : why_(std::move(why)) {}
  const char* what() const noexcept override { return why_.c_str(); }

private:
  std::string why_;
};

/// Thrown by an injected fault (`--fault throw@...`).
class injected_fault : public std::exception {
public:
  /// `what`: fault_drill::text.
  explicit injected_fault(std::string what) : what_(std::move(what)) {}
  const char* what() const noexcept override { return what_.c_str(); }

private:
  std::string what_;
};

/// A broken invariant of Troupe itself. Exit code 70.
class internal_error : public std::exception {
public:
  /// `what`: the invariant that does not hold.
  explicit internal_error(std::string what) : what_(std::move(what)) {}
  const char* what() const noexcept override { return what_.c_str(); }

private:
  std::string what_;
};

/// An error that a user can fix: the text says what is wrong and how to fix it. `code` is the exit
/// code of the program that it ends.
class user_error : public std::exception {
public:
  /// `what`: what is wrong, and how to fix it.
  user_error(errc code, std::string what) : code_(code), what_(std::move(what)) {}
  /// The exit code of the program that it ends.
  errc code() const noexcept { return code_; }
  const char* what() const noexcept override { return what_.c_str(); }

private:
  errc code_;
  std::string what_;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, failure_cause& x) {
  return f(x.type, x.what);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, failure_id& x) {
  return f(x.incarnation, x.sequence);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, failure& x) {
  return f(x.kind, x.id, x.type, x.what, x.rank, x.hook, x.epoch, x.step, x.generation, x.sequence,
           x.code, x.signal, x.causes, x.others, x.follows);
}

// Exceptions that cross a process: which types the caller's process can make again.

/// Throws the failure of a rank in another process as the type that it had there. Known from the
/// start are the standard library's types that are made of a text: std::runtime_error,
/// std::logic_error and what derives from them in <stdexcept>. A program adds its own:
///
///     auto world = troupe::local_ports();
///     world.exceptions.add<disk_full>();  // disk_full(std::string) or disk_full(const char*)
///     world.exceptions.add<bad_row>([](const std::string& text) { return bad_row{text, 0}; });
///
/// Both processes run the same program, so a type has the same name in both. A copy is independent.
/// Const calls are thread-safe.
class exception_types {
public:
  /// Adds E, which is made of what() of the exception that was thrown. A type that is there is
  /// replaced.
  template <class E>
  void add() {
    add<E>([](const std::string& text) { return E(text.c_str()); });
  }
  /// `make(text)` returns the exception, where `text` is what() of the one that was thrown. When it
  /// throws, the type counts as unknown.
  template <class E, class Make>
  void add(Make make) {
    makers_[name_of(typeid(E))] = [make = std::move(make)](const std::string& text,
                                                           const std::exception_ptr& nested) {
      return thrown<E>(make(text), nested);
    };
  }

  /// The exception of `f`, with its nested causes:
  /// - a known type: itself, with the same text;
  /// - else user_error or internal_error by the record's code;
  /// - else std::runtime_error, whose text is render(f), and for a nested cause `type: text`.
  std::exception_ptr make(const failure& f) const;

  /// The name that a failure's record has for a type.
  static std::string name_of(const std::type_info& type);
  /// The exception_ptr of `error`, nested around `nested` unless that is null.
  template <class E>
  static std::exception_ptr thrown(E error, const std::exception_ptr& nested) {
    if (!nested) return std::make_exception_ptr(std::move(error));
    try {
      try {
        std::rethrow_exception(nested);
      } catch (...) {
        std::throw_with_nested(std::move(error));
      }
    } catch (...) {
      return std::current_exception();
    }
  }

private:
  using maker =
      std::function<std::exception_ptr(const std::string& text, const std::exception_ptr& nested)>;

  std::exception_ptr known(const failure_cause& what, const std::exception_ptr& nested) const;
  std::exception_ptr causes_of(const failure& f) const;

  std::map<std::string, maker> makers_;
};

// Why a run ended early: job_outcome::why, and module::why_ended in the hooks at the end of a fit.

/// Why a run ended early; `none`: it did not.
enum class stop_reason : std::uint8_t { none, hook, early_stopping, caller, interrupt, terminate };
/// The enumerator's name.
std::string_view to_string(stop_reason r);

}  // namespace troupe
