#include "apps/troupe/torch_own.hpp"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <optional>

#include "troupe/detail/tensor.hpp"
#include "troupe/failure.hpp"
#include "troupe/module.hpp"

namespace troupe::program {

namespace {

using nlohmann::ordered_json;

template <class T>
ordered_json nested(const T*& next, at::IntArrayRef sizes) {
  if (sizes.empty()) return *next++;
  auto list = ordered_json::array();
  for (std::int64_t i = 0; i < sizes.front(); ++i) list.push_back(nested(next, sizes.slice(1)));
  return list;
}

// Results lie in the host's memory.
ordered_json as_json(const at::Tensor& here) {
  if (here.scalar_type() == at::kBool) {
    const auto flat = here.contiguous();
    const auto* next = flat.const_data_ptr<bool>();
    return nested(next, flat.sizes());
  }
  if (at::isIntegralType(here.scalar_type(), false)) {
    const auto flat = here.to(at::kLong).contiguous();
    const auto* next = flat.const_data_ptr<std::int64_t>();
    return nested(next, flat.sizes());
  }
  const auto flat = here.to(at::kDouble).contiguous();
  const auto* next = flat.const_data_ptr<double>();
  return nested(next, flat.sizes());
}

// `row`: of each tensor; nothing: all of it.
ordered_json as_json(const value& what, std::optional<std::int64_t> row) {
  if (what.is<tensor_ptr>()) return as_json(row ? unboxed(what)[*row] : unboxed(what));
  if (const auto* x = what.get_if<bool>()) return *x;
  if (const auto* x = what.get_if<std::int64_t>()) return *x;
  if (const auto* x = what.get_if<double>()) return *x;
  if (const auto* x = what.get_if<std::string>()) return *x;
  if (const auto* x = what.get_if<value_map>()) {
    auto object = ordered_json::object();
    for (const auto& [key, item] : x->items) object[key] = as_json(item, row);
    return object;
  }
  const std::vector<value>* items = nullptr;
  if (const auto* x = what.get_if<value_tuple>()) items = &x->items;
  if (const auto* x = what.get_if<value_list>()) items = &x->items;
  if (!items) return nullptr;  // nothing, or a type of the user's
  auto list = ordered_json::array();
  for (const auto& item : *items) list.push_back(as_json(item, row));
  return list;
}

// Samples of a batch; nothing if its tensors do not have a row for each.
std::optional<std::int64_t> rows_of(const value& batch) {
  std::optional<std::int64_t> rows;
  for (const auto& one : tensors_of(batch)) {
    if (one.dim() == 0 || (rows && one.size(0) != *rows)) return std::nullopt;
    rows = one.size(0);
  }
  return rows;
}

void add_predictions(const value& what, std::vector<std::string>& lines) {
  if (const auto* batches = what.get_if<value_list>()) {
    for (const auto& one : batches->items) add_predictions(one, lines);
    return;
  }
  const auto add = [&](const char* unit, ordered_json predicted) {
    lines.push_back(ordered_json{
        {"schema", "troupe.prediction/1"}, {unit, lines.size()}, {"value", std::move(predicted)}}
                        .dump(-1, ' ', false, ordered_json::error_handler_t::replace));
  };
  const auto rows = rows_of(what);
  if (!rows) return add("batch", as_json(what, std::nullopt));
  for (std::int64_t row = 0; row < *rows; ++row) add("sample", as_json(what, row));
}

template <class Made>
void refuse_nothing(const std::shared_ptr<Made>& made, const char* kind, const std::string& name) {
  if (!made)
    throw user_error(errc::bad_configuration,
                     fmt::format("the function of the {} {} returns nothing", kind, name));
}

}  // namespace

std::shared_ptr<module> make_own(const detail::own_part<module>& one, const value_map& settings) {
  auto made = one.make(settings);
  refuse_nothing(made, "model", one.name);
  return made;
}

data_ptr make_own(const detail::own_part<data_module>& one, const value_map& settings) {
  data_ptr made;
  try {
    made = one.make(settings);
  } catch (const user_error&) {
    throw;
  } catch (const std::exception& error) {
    throw user_error(errc::job_failed,
                     fmt::format("cannot make the data set {}: {}", one.name, error.what()));
  }
  refuse_nothing(made, "data set", one.name);
  return made;
}

std::vector<std::string> own_predictions(const value& result) {
  std::vector<std::string> lines;
  add_predictions(result, lines);
  return lines;
}

}  // namespace troupe::program
