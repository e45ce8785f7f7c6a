#include "backends/torch/time_split.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "troupe/detail/tensor.hpp"
#include "troupe/failure.hpp"

namespace troupe {

namespace {

struct time_range {
  std::int64_t first;
  std::int64_t last;
};

[[noreturn]] void cannot_split(std::string_view why) {
  throw user_error(errc::job_failed,
                   fmt::format("tbptt_split_batch: {}, or override tbptt_split_batch", why));
}

const std::vector<value>* items_of(const value& v) {
  if (const auto* tuple = v.get_if<value_tuple>()) return &tuple->items;
  if (const auto* list = v.get_if<value_list>()) return &list->items;
  return nullptr;
}

// Keeps the kind of `v`, a tuple or a list.
value with_items(const value& v, std::vector<value> items) {
  if (v.is<value_tuple>()) return value_tuple{std::move(items)};
  return value_list{std::move(items)};
}

std::int64_t length_along(const value& v, std::int64_t dimension) {
  const auto& tensor = unboxed(v);
  if (tensor.dim() <= dimension)
    cannot_split(fmt::format("a tensor of {} dimensions has no time in dimension {}: give it one",
                             tensor.dim(), dimension));
  return tensor.size(dimension);
}

value cut_along(const value& v, std::int64_t dimension, time_range range) {
  return boxed(unboxed(v).slice(dimension, range.first, range.last));
}

// One sample of a sequence of samples: a tensor, or a sequence of steps.
std::int64_t length_of_sample(const value& sample) {
  if (const auto* steps = items_of(sample)) return static_cast<std::int64_t>(steps->size());
  if (sample.is<tensor_ptr>()) return length_along(sample, 0);
  cannot_split(fmt::format("{} is no sequence in time: give tensors or lists", to_string(sample)));
}

value cut_sample(const value& sample, time_range range) {
  const auto* steps = items_of(sample);
  if (!steps) return cut_along(sample, 0, range);
  return with_items(sample, {steps->begin() + range.first, steps->begin() + range.last});
}

// The number of time steps in a part of the batch. Nothing if the part has no time steps.
std::optional<std::int64_t> length_of(const value& part) {
  if (part.is<tensor_ptr>()) return length_along(part, 1);
  const auto* samples = items_of(part);
  if (!samples || samples->empty()) return std::nullopt;
  return length_of_sample(samples->front());
}

value cut_part(const value& part, time_range range) {
  if (part.is<tensor_ptr>()) return cut_along(part, 1, range);
  const auto* samples = items_of(part);
  if (!samples) return part;
  std::vector<value> cut;
  for (const auto& sample : *samples) {
    if (length_of_sample(sample) < range.last)
      cannot_split("the samples of a sequence differ in length: pad them");
    cut.push_back(cut_sample(sample, range));
  }
  return with_items(part, std::move(cut));
}

template <class F>
void each_part(const value& whole, F&& use) {
  if (const auto* items = items_of(whole))
    for (const auto& item : *items) use(item);
  else if (const auto* map = whole.get_if<value_map>())
    for (const auto& [key, item] : map->items) use(item);
  else
    use(whole);
}

std::int64_t length_in_time(const value& whole) {
  std::optional<std::int64_t> length;
  each_part(whole, [&](const value& part) {
    const auto one = length_of(part);
    if (one && length.value_or(*one) != *one)
      cannot_split(
          fmt::format("the parts of the batch have {} and {} steps in time: give them the "
                      "same number",
                      *length, *one));
    if (one) length = one;
  });
  if (length.value_or(0) > 0) return *length;
  cannot_split(
      fmt::format("the batch {} has no steps in time: give it a tensor of (samples, time, "
                  "...)",
                  to_string(whole)));
}

value cut_whole(const value& whole, time_range range) {
  if (const auto* map = whole.get_if<value_map>()) {
    auto copy = *map;
    for (auto& [key, item] : copy.items) item = cut_part(item, range);
    return copy;
  }
  const auto* items = items_of(whole);
  if (!items) return cut_part(whole, range);
  std::vector<value> cut;
  for (const auto& item : *items) cut.push_back(cut_part(item, range));
  return with_items(whole, std::move(cut));
}

}  // namespace

std::vector<value> split_in_time(const value& whole, std::int64_t steps) {
  const auto length = length_in_time(whole);
  std::vector<value> parts;
  for (std::int64_t first = 0; first < length; first += steps)
    parts.push_back(cut_whole(whole, {first, std::min(first + steps, length)}));
  return parts;
}

}  // namespace troupe
