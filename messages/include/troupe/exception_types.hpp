// Exceptions that cross a process: which types the caller's process can make again.
#pragma once

#include "troupe/failure.hpp"

#include <exception>
#include <functional>
#include <map>
#include <string>
#include <typeinfo>
#include <utility>

namespace troupe {

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

}  // namespace troupe
