#include "troupe/detail/scatter.hpp"

#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <fmt/format.h>

#include <algorithm>

#include "troupe/detail/tensor.hpp"
#include "troupe/failure.hpp"

namespace troupe::detail {

namespace {

[[noreturn]] void refuse(const std::string& text) { throw user_error(errc::job_failed, text); }

}  // namespace

scattering::scattering(std::vector<c10::Device> devices, std::int64_t dim)
    : devices_(std::move(devices)), dim_(dim) {
  if (devices_.empty()) refuse("scatter needs at least one device");
}

std::int64_t scattering::dimension_of(const at::Tensor& whole) const {
  const auto dim = dim_ < 0 ? dim_ + whole.dim() : dim_;
  if (dim < 0 || dim >= whole.dim())
    refuse(
        fmt::format("a tensor of {} dimensions cannot be divided along dimension {}: give it "
                    "that dimension, or pass the number itself instead of a tensor",
                    whole.dim(), dim_));
  return dim;
}

void scattering::add(const at::Tensor& whole) {
  if (!whole.defined()) return;
  const auto chunks = static_cast<std::int64_t>(
      whole.detach().chunk(static_cast<std::int64_t>(devices_.size()), dimension_of(whole)).size());
  if (chunks_.value_or(chunks) != chunks)
    refuse(
        fmt::format("the tensors of a call give {} and {} chunks for {} devices along dimension "
                    "{}: bring equally many samples in each",
                    *chunks_, chunks, devices_.size(), dim_));
  chunks_ = chunks;
}

std::int64_t scattering::chunks(bool any_arguments) const {
  return chunks_.value_or(any_arguments ? static_cast<std::int64_t>(devices_.size()) : 1);
}

at::Tensor scattering::piece(const at::Tensor& whole, std::int64_t copy) const {
  if (!whole.defined()) return whole;
  const auto all = whole.chunk(static_cast<std::int64_t>(devices_.size()), dimension_of(whole));
  return all.at(static_cast<std::size_t>(copy)).to(devices_[static_cast<std::size_t>(copy)]);
}

value with_tensors(const value& what, const std::function<at::Tensor(const at::Tensor&)>& f) {
  return map_tensors(what, f);
}

at::Tensor gathering::join(const std::vector<at::Tensor>& parts) const {
  std::vector<at::Tensor> here;
  bool scalars = true;
  std::vector<std::size_t> there;
  for (const auto& part : parts) there.push_back(part.defined());
  require_equal(there, "tensors (undefined ones are empty)");
  if (!parts.at(0).defined()) return {};
  for (const auto& part : parts) {
    here.push_back(part.to(device));
    scalars = scalars && part.dim() == 0;
  }
  return scalars ? at::stack(here) : at::cat(here, dim);
}

void gathering::require_equal(const std::vector<std::size_t>& sizes, const char* of) {
  for (std::size_t copy = 1; copy < sizes.size(); ++copy)
    if (sizes[copy] != sizes[0])
      refuse(
          fmt::format("gather: copy {} returned {} of size {}, copy 0 of size {}: return the "
                      "same from each copy",
                      copy, of, sizes[copy], sizes[0]));
}

void gathering::refuse_keys() {
  refuse("gather: copies returned maps with different keys: return the same from each copy");
}

value gathering::join(const std::vector<value>& parts) const {
  const auto& first = parts.at(0);
  for (const auto& part : parts)
    if (part.held().index() != first.held().index())
      refuse("gather: copies returned values of different kinds: return the same from each copy");
  const auto items_of = [&]<class T>(const T*) {
    std::vector<std::vector<value>> all;
    for (const auto& part : parts) all.push_back(part.get_if<T>()->items);
    return T{join(all)};
  };
  if (first.empty()) return first;
  if (first.is<tensor_ptr>()) {
    std::vector<at::Tensor> tensors;
    for (const auto& part : parts) tensors.push_back(unboxed(part));
    return boxed(join(tensors));
  }
  if (const auto* tuple = first.get_if<value_tuple>()) return items_of(tuple);
  if (const auto* list = first.get_if<value_list>()) return items_of(list);
  if (first.is<value_map>()) {
    std::vector<std::map<std::string, value>> all;
    for (const auto& part : parts) all.push_back(part.get_if<value_map>()->items);
    return value_map{join(all)};
  }
  refuse(
      fmt::format("gather: {} cannot be joined: return tensors from each copy", to_string(first)));
}

}  // namespace troupe::detail
