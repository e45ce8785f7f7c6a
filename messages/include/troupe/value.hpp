// A recursive value: a batch, the result of a step, what ranks broadcast and queue. It holds
// tensors without LibTorch's headers: a tensor is a shared box, which <troupe/module.hpp> opens.
// And the snapshot of a rank's state, which the checkpointer writes.
#pragma once

#include "troupe/detail/loop_state.hpp"

#include <any>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <variant>
#include <vector>

namespace troupe {

/// Holds one tensor; defined where LibTorch is. Const: a tensor in a value is not written to; clone
/// it first.
struct tensor_box;
/// Copies share the tensor.
using tensor_ptr = std::shared_ptr<const tensor_box>;

class value;
/// Fixed length, mixed types. Stays a tuple when it is moved to a device or gathered.
struct value_tuple {
  /// In order.
  std::vector<value> items;
  friend bool operator==(const value_tuple& a, const value_tuple& b);
};
/// Any length.
struct value_list {
  /// In order.
  std::vector<value> items;
  friend bool operator==(const value_list& a, const value_list& b);
};
/// Text keys, ordered.
struct value_map {
  /// By key.
  std::map<std::string, value> items;
  friend bool operator==(const value_map& a, const value_map& b);
};
/// A type of the user's own. Shared and const; compared by identity. How such a type is moved to a
/// device is in torch_plugins::moves.
struct value_user {
  /// Null: nothing. std::any_cast gives the object.
  std::shared_ptr<const std::any> held;
  friend bool operator==(const value_user&, const value_user&) = default;
};

/// Nothing, a bool, an integer, a floating-point number, a text, a tensor, a tuple, a list, a map,
/// or a user's type. A regular value: copies are deep except for tensors and user types, which are
/// shared and const. Tensors are equal when they are the same box.
class value {
public:
  /// What a value can be; std::monostate is nothing.
  using alternatives = std::variant<std::monostate, bool, std::int64_t, double, std::string,
                                    tensor_ptr, value_tuple, value_list, value_map, value_user>;

  value() = default;
  /// Implicit. An int is an std::int64_t; a literal is a std::string.
  /// @{
  value(bool x) : held_(x) {}
  value(int x) : held_(std::int64_t{x}) {}
  value(std::int64_t x) : held_(x) {}
  value(double x) : held_(x) {}
  value(const char* x) : held_(std::string{x}) {}
  value(std::string x) : held_(std::move(x)) {}
  value(tensor_ptr x) : held_(std::move(x)) {}
  value(value_tuple x) : held_(std::move(x)) {}
  value(value_list x) : held_(std::move(x)) {}
  value(value_map x) : held_(std::move(x)) {}
  value(value_user x) : held_(std::move(x)) {}
  /// @}

  /// Nothing. An empty text or container is something.
  bool empty() const { return std::holds_alternative<std::monostate>(held_); }
  /// Whether it is a T, one of `alternatives`.
  template <class T>
  bool is() const {
    return std::holds_alternative<T>(held_);
  }
  /// The alternative, or null.
  template <class T>
  const T* get_if() const {
    return std::get_if<T>(&held_);
  }
  /// The alternative, or null; for changes in place.
  template <class T>
  T* get_if() {
    return std::get_if<T>(&held_);
  }
  /// For std::visit.
  const alternatives& held() const { return held_; }

  friend bool operator==(const value&, const value&) = default;

private:
  alternatives held_;
};

/// For people: `(tensor, [1, 2], {"a": 0.5})`.
std::ostream& operator<<(std::ostream& out, const value& v);
/// The same as text.
std::string to_string(const value& v);

// A copy of a rank's state in host memory, readable without LibTorch. The checkpointer writes it.

/// One tensor's bytes: little endian, dense, row-major. `dtype` uses safetensors' names (F32, BF16,
/// I64, BOOL, ...). `bytes` is immutable and may be shared.
struct tensor_blob {
  /// A parameter's or buffer's name in its module.
  std::string name;
  /// The name that safetensors has for the type.
  std::string dtype;
  /// Empty for a scalar.
  std::vector<std::int64_t> shape;
  /// Never null.
  std::shared_ptr<const std::vector<std::byte>> bytes;
};

/// The state of a rank at one step boundary. Immutable once shared.
/// - `model`: parameters and buffers, in the module's order.
/// - `state`: JSON text with optimizer groups, schedulers, precision, data, random state, and what
///   the module's on_save_checkpoint returned.
struct snapshot {
  /// The step boundary.
  loop_state loop;
  /// The job's shards when it was taken.
  std::int32_t ranks = 1;
  /// The generation in which it was taken.
  std::uint64_t generation = 1;
  std::string weights_digest;          ///< of `model`; equal digests mean equal bytes
  std::vector<tensor_blob> model;      ///< in the module's order
  std::vector<tensor_blob> optimizer;  ///< `<optimizer>.<parameter>.<slot>`
  std::string state;                   ///< JSON text; empty: none
};
/// Shared and const, so any thread may read it.
using snapshot_ptr = std::shared_ptr<const snapshot>;

}  // namespace troupe
