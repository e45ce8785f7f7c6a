// Tensors inside the arguments and results of a forward: divided over copies, and joined.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "troupe/value.hpp"

namespace troupe::detail {

/// Divides tensors along `dim` into one chunk per device, as at::chunk does: there may be fewer
/// chunks than devices. Every tensor of a call is passed to `add` before the first `piece`.
class scattering {
public:
  scattering(std::vector<c10::Device> devices, std::int64_t dim);

  /// Throws user_error if the tensor has no dimension `dim`, or another number of chunks.
  void add(const at::Tensor& whole);
  /// Without tensors: 1 if the call has no arguments, else one per device.
  std::int64_t chunks(bool any_arguments = true) const;
  /// Chunk `copy`, on that copy's device. Differentiable. Undefined tensors stay undefined.
  at::Tensor piece(const at::Tensor& whole, std::int64_t copy) const;

private:
  std::int64_t dimension_of(const at::Tensor& whole) const;

  std::vector<c10::Device> devices_;
  std::int64_t dim_;
  std::optional<std::int64_t> chunks_;
};

value with_tensors(const value& what, const std::function<at::Tensor(const at::Tensor&)>& f);

template <class T>
struct is_items : std::false_type {};
template <class... T>
struct is_items<std::tuple<T...>> : std::true_type {};
template <class A, class B>
struct is_items<std::pair<A, B>> : std::true_type {};
template <class T, std::size_t N>
struct is_items<std::array<T, N>> : std::true_type {};

template <class T>
struct is_list : std::false_type {};
template <class T, class A>
struct is_list<std::vector<T, A>> : std::true_type {};

template <class T>
struct is_map : std::false_type {};
template <class... T>
struct is_map<std::map<T...>> : std::true_type {};
template <class... T>
struct is_map<std::unordered_map<T...>> : std::true_type {};

template <class T>
struct is_optional : std::false_type {};
template <class T>
struct is_optional<std::optional<T>> : std::true_type {};

/// `what` with every tensor replaced by f(tensor), in standard containers and values. Any other
/// type is copied.
template <class T, class F>
T with_tensors(const T& what, const F& f) {
  if constexpr (std::is_same_v<T, at::Tensor>) {
    return f(what);
  } else if constexpr (std::is_same_v<T, value>) {
    return with_tensors(what, std::function<at::Tensor(const at::Tensor&)>{f});
  } else if constexpr (is_items<T>::value) {
    return std::apply([&](const auto&... item) { return T{with_tensors(item, f)...}; }, what);
  } else if constexpr (is_list<T>::value) {
    T changed;
    changed.reserve(what.size());
    for (const auto& item : what) changed.push_back(with_tensors(item, f));
    return changed;
  } else if constexpr (is_map<T>::value) {
    T changed;
    for (const auto& [key, item] : what) changed.emplace(key, with_tensors(item, f));
    return changed;
  } else if constexpr (is_optional<T>::value) {
    return what ? T{with_tensors(*what, f)} : T{};
  } else {
    return what;
  }
}

/// Joins the results of copies, in order of copies.
struct gathering {
  c10::Device device;
  std::int64_t dim = 0;

  /// Concatenated along `dim`. Tensors without dimensions become a vector. Differentiable.
  at::Tensor join(const std::vector<at::Tensor>& parts) const;
  value join(const std::vector<value>& parts) const;
  /// Throws user_error unless all are equal.
  static void require_equal(const std::vector<std::size_t>& sizes, const char* of);
  [[noreturn]] static void refuse_keys();

  template <class T>
  T join(const std::vector<T>& parts) const {
    if constexpr (is_items<T>::value) {
      return join_items(parts, std::make_index_sequence<std::tuple_size_v<T>>{});
    } else if constexpr (is_list<T>::value) {
      require_equal(sizes_of(parts), "lists");
      T joined;
      for (std::size_t i = 0; i < parts[0].size(); ++i)
        joined.push_back(join(each<typename T::value_type>(
            parts, [i](const T& part) -> const auto& { return part[i]; })));
      return joined;
    } else if constexpr (is_map<T>::value) {
      require_equal(sizes_of(parts), "maps");
      T joined;
      for (const auto& [key, unused] : parts[0])
        joined.emplace(key, join(each<typename T::mapped_type>(
                                parts, [&key = key](const T& part) -> const auto& {
                                  const auto found = part.find(key);
                                  if (found == part.end()) refuse_keys();
                                  return found->second;
                                })));
      return joined;
    } else {
      static_assert(is_optional<T>::value,
                    "copies return tensors, values, and standard containers of them");
      std::vector<std::size_t> there;
      for (const auto& part : parts) there.push_back(part.has_value());
      require_equal(there, "optional results");
      if (!parts[0]) return {};
      return join(each<typename T::value_type>(
          parts, [](const T& part) -> const auto& { return *part; }));
    }
  }

private:
  template <class E, class T, class F>
  static std::vector<E> each(const std::vector<T>& parts, const F& item) {
    std::vector<E> items;
    for (const auto& part : parts) items.push_back(item(part));
    return items;
  }
  template <class T>
  static std::vector<std::size_t> sizes_of(const std::vector<T>& parts) {
    std::vector<std::size_t> sizes;
    for (const auto& part : parts) sizes.push_back(part.size());
    return sizes;
  }
  template <class T, std::size_t... I>
  T join_items(const std::vector<T>& parts, std::index_sequence<I...>) const {
    return T{join(each<std::decay_t<std::tuple_element_t<I, T>>>(
        parts, [](const T& part) -> const auto& { return std::get<I>(part); }))...};
  }
};

}  // namespace troupe::detail
