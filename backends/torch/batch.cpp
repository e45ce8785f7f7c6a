#include "troupe/data.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <stdexcept>
#include <vector>

#include "troupe/detail/tensor.hpp"
#include "troupe/failure.hpp"

namespace troupe {

namespace {

template <class Sequence>
const at::Tensor& item_of(const Sequence& sequence, std::size_t index, const value& whole) {
  if (index >= sequence.items.size())
    throw std::out_of_range(fmt::format("the batch {} has no item {}", to_string(whole), index));
  return unboxed(sequence.items[index]);
}

}  // namespace

const at::Tensor& batch::operator[](std::size_t index) const {
  if (const auto* tuple = held_.get_if<value_tuple>()) return item_of(*tuple, index, held_);
  if (const auto* list = held_.get_if<value_list>()) return item_of(*list, index, held_);
  if (index == 0 && held_.is<tensor_ptr>()) return unboxed(held_);
  throw std::invalid_argument(
      fmt::format("the batch is {}: it has no item {}", to_string(held_), index));
}

const at::Tensor& batch::operator[](std::string_view key) const {
  const auto* map = held_.get_if<value_map>();
  if (!map)
    throw std::invalid_argument(
        fmt::format("the batch is {}: it has no item \"{}\"", to_string(held_), key));
  const auto found = map->items.find(std::string{key});
  if (found != map->items.end()) return unboxed(found->second);
  std::vector<std::string_view> keys;
  for (const auto& [known, item] : map->items) keys.push_back(known);
  throw std::out_of_range(
      fmt::format("the batch has no item \"{}\"; it has {}", key, fmt::join(keys, ", ")));
}

step_output::step_output(const at::Tensor& loss) {
  if (loss.defined()) held_ = boxed(loss);
}

step_output::step_output(const std::map<std::string, at::Tensor>& map) {
  value_map items;
  for (const auto& [key, tensor] : map) items.items.emplace(key, boxed(tensor));
  held_ = std::move(items);
}

const at::Tensor* step_output::find_loss() const {
  const auto* map = held_.get_if<value_map>();
  const auto* place = &held_;
  if (map) {
    const auto found = map->items.find("loss");
    if (found == map->items.end()) return nullptr;
    place = &found->second;
  }
  const auto* box = place->get_if<tensor_ptr>();
  return box && *box ? &(*box)->tensor : nullptr;
}

value step_output::entry(const char* key) const {
  const auto* map = held_.get_if<value_map>();
  if (!map) return {};
  const auto found = map->items.find(key);
  return found == map->items.end() ? value{} : found->second;
}

value step_output::backward_arguments() const { return entry("backward_arguments"); }
value step_output::hiddens() const { return entry("hiddens"); }

const at::Tensor& step_output::loss() const {
  if (const auto* found = find_loss()) return *found;
  throw user_error(errc::job_failed,
                   fmt::format("training_step returned {}: return a loss (one tensor), or a map "
                               "with a tensor under \"loss\"",
                               empty() ? "nothing" : to_string(held_)));
}

}  // namespace troupe
