#include "troupe/data.hpp"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <list>
#include <mutex>

#include "backends/torch/ordered_dataset.hpp"
#include "backends/torch/rank_random.hpp"
#include "troupe/failure.hpp"

namespace troupe {

namespace {

[[noreturn]] void refuse_data(const std::string& what) { throw user_error(errc::job_failed, what); }

// --- collate -------------------------------------------------------------------------------------

template <class T>
std::vector<const T*> all_of_kind(const std::vector<value>& samples) {
  std::vector<const T*> found;
  for (const auto& one : samples) {
    found.push_back(one.get_if<T>());
    if (!found.back())
      refuse_data(
          fmt::format("collate: a batch has the samples {} and {}: give samples of one "
                      "kind, or a collate function of your own",
                      to_string(samples.front()), to_string(one)));
  }
  return found;
}

template <class T>
value collate_numbers(const std::vector<value>& samples, at::ScalarType type) {
  std::vector<T> numbers;
  for (const auto* one : all_of_kind<T>(samples)) numbers.push_back(*one);
  if constexpr (std::is_same_v<T, bool>)
    return boxed(at::tensor(std::vector<std::int64_t>(numbers.begin(), numbers.end())).to(type));
  else
    return boxed(at::tensor(numbers, type));
}

value collate_tensors(const std::vector<value>& samples) {
  std::vector<at::Tensor> tensors;
  for (const auto* one : all_of_kind<tensor_ptr>(samples)) {
    tensors.push_back((*one)->tensor);
    if (tensors.back().sizes() != tensors.front().sizes())
      refuse_data(
          "collate: the tensors of a batch differ in shape: pad them, or give a collate "
          "function of your own");
  }
  return boxed(at::stack(tensors));
}

template <class Sequence>
value collate_items(const std::vector<value>& samples) {
  const auto sequences = all_of_kind<Sequence>(samples);
  Sequence made;
  for (std::size_t i = 0; i < sequences.front()->items.size(); ++i) {
    std::vector<value> column;
    for (const auto* one : sequences) {
      if (one->items.size() != sequences.front()->items.size())
        refuse_data("collate: the samples of a batch differ in their number of items");
      column.push_back(one->items[i]);
    }
    made.items.push_back(collate(std::move(column)));
  }
  return made;
}

value collate_maps(const std::vector<value>& samples) {
  const auto maps = all_of_kind<value_map>(samples);
  value_map made;
  for (const auto& [key, ignored] : maps.front()->items) {
    std::vector<value> column;
    for (const auto* one : maps) {
      const auto found = one->items.find(key);
      if (found == one->items.end())
        refuse_data(fmt::format("collate: a sample of the batch has no \"{}\"", key));
      column.push_back(found->second);
    }
    made.items.emplace(key, collate(std::move(column)));
  }
  return made;
}

}  // namespace

value collate(std::vector<value> samples) {
  if (samples.empty()) throw internal_error("collate: no samples");
  const auto& first = samples.front();
  if (first.is<tensor_ptr>()) return collate_tensors(samples);
  if (first.is<double>()) return collate_numbers<double>(samples, at::kDouble);
  if (first.is<std::int64_t>()) return collate_numbers<std::int64_t>(samples, at::kLong);
  if (first.is<bool>()) return collate_numbers<bool>(samples, at::kBool);
  if (first.is<value_tuple>()) return collate_items<value_tuple>(samples);
  if (first.is<value_list>()) return collate_items<value_list>(samples);
  if (first.is<value_map>()) return collate_maps(samples);
  return value_list{std::move(samples)};
}

// --- datasets ------------------------------------------------------------------------------------

namespace {

class tensors_in_memory final : public dataset {
public:
  explicit tensors_in_memory(std::vector<at::Tensor> tensors) : tensors_(std::move(tensors)) {
    if (tensors_.empty()) refuse_data("tensor_dataset: there is no tensor");
    for (const auto& one : tensors_)
      if (!one.defined() || one.dim() == 0 || one.size(0) != tensors_[0].size(0))
        refuse_data(
            "tensor_dataset: the tensors have different numbers of rows: give (N, ...) of "
            "one N");
  }
  std::int64_t size() const override { return tensors_[0].size(0); }
  value get(std::span<const std::int64_t> indices) const override {
    // ATen only reads this memory.
    auto* first = const_cast<std::int64_t*>(indices.data());
    const auto which = at::from_blob(first, {static_cast<std::int64_t>(indices.size())}, at::kLong);
    value_tuple batch;
    for (const auto& one : tensors_) batch.items.push_back(boxed(one.index_select(0, which)));
    return batch;
  }

private:
  std::vector<at::Tensor> tensors_;
};

class samples_by_function final : public dataset {
public:
  samples_by_function(std::int64_t size, std::function<value(std::int64_t)> sample,
                      collate_function how)
      : size_(size), sample_(std::move(sample)), collate_(std::move(how)) {
    if (!sample_ || !collate_)
      refuse_data("function_dataset: the function or collate is empty: give both");
  }
  std::int64_t size() const override { return size_; }
  value get(std::span<const std::int64_t> indices) const override {
    std::vector<value> samples;
    for (const auto index : indices) samples.push_back(sample_(index));
    return collate_(std::move(samples));
  }

private:
  std::int64_t size_;
  std::function<value(std::int64_t)> sample_;
  collate_function collate_;
};

/// Keeps the streams that ranks have opened, each with its position, for their next batch.
class samples_of_stream final : public dataset {
public:
  samples_of_stream(std::int64_t size, std::function<sample_stream(std::int64_t)> open,
                    collate_function how)
      : size_(size), open_(std::move(open)), collate_(std::move(how)) {
    if (!open_ || !collate_)
      refuse_data("stream_dataset: the function or collate is empty: give both");
  }
  std::int64_t size() const override { return size_; }
  value get(std::span<const std::int64_t> indices) const override { return get_keyed(indices, {}); }
  value get_keyed(std::span<const std::int64_t> indices, const sample_keys& keys) const override {
    std::vector<value> samples;
    auto reader = reader_at(keys.epoch, indices.front());
    for (const auto index : indices) {
      if (index < reader.position) reader = reader_at(keys.epoch, index);
      while (reader.position < index) read(reader);
      samples.push_back(read(reader));
    }
    const std::lock_guard lock{guard_};
    idle_.push_front(std::move(reader));
    if (idle_.size() > most_idle) idle_.pop_back();
    return collate_(std::move(samples));
  }

private:
  static constexpr std::size_t most_idle = 64;
  struct open_stream {
    std::int64_t epoch = 0;
    std::int64_t position = 0;
    sample_stream next;
  };

  // The idle stream of `epoch` whose position is the nearest at or before `index`; a new stream if
  // there is none. Closes the streams of earlier epochs.
  open_stream reader_at(std::int64_t epoch, std::int64_t index) const {
    {
      const std::lock_guard lock{guard_};
      idle_.remove_if([&](const auto& one) { return one.epoch < epoch; });
      auto best = idle_.end();
      for (auto one = idle_.begin(); one != idle_.end(); ++one)
        if (one->epoch == epoch && one->position <= index &&
            (best == idle_.end() || one->position > best->position))
          best = one;
      if (best != idle_.end()) {
        auto found = std::move(*best);
        idle_.erase(best);
        return found;
      }
    }
    auto fresh = open_(epoch);
    if (!fresh)
      refuse_data(
          fmt::format("stream_dataset: the function returned no stream for epoch {}", epoch));
    return {epoch, 0, std::move(fresh)};
  }

  value read(open_stream& from) const {
    auto sample = from.next();
    if (!sample)
      refuse_data(
          fmt::format("stream_dataset: the stream ended after {} of {} samples: give the "
                      "number that it has",
                      from.position, size_));
    ++from.position;
    return std::move(*sample);
  }

  std::int64_t size_;
  std::function<sample_stream(std::int64_t)> open_;
  collate_function collate_;
  mutable std::mutex guard_;
  mutable std::list<open_stream> idle_;
};

bool holds_others(const value& one) {
  return one.is<tensor_ptr>() || one.is<value_tuple>() || one.is<value_list>() ||
         one.is<value_map>();
}

// Sample `i` of the `count` samples that `collate` has made a batch of; numbers stay tensors.
value sample_of(const value& batch, std::size_t i, std::size_t count) {
  const auto of_each = [&](auto sequence) {
    for (auto& item : sequence.items) item = sample_of(item, i, count);
    return sequence;
  };
  if (const auto* tuple = batch.get_if<value_tuple>()) return of_each(*tuple);
  if (const auto* list = batch.get_if<value_list>()) {
    const bool texts =
        list->items.size() == count && std::ranges::none_of(list->items, holds_others);
    return texts ? list->items[i] : of_each(*list);
  }
  if (const auto* map = batch.get_if<value_map>()) {
    auto one = *map;
    for (auto& [key, item] : one.items) item = sample_of(item, i, count);
    return one;
  }
  return map_tensors(batch, [row = static_cast<std::int64_t>(i)](const at::Tensor& t) {
    return t.select(0, row);
  });
}

class transformed_samples final : public dataset {
public:
  transformed_samples(dataset_ptr inner, std::function<value(value, std::uint64_t)> transform,
                      collate_function how)
      : inner_(std::move(inner)), transform_(std::move(transform)), collate_(std::move(how)) {
    if (!inner_ || !transform_ || !collate_)
      refuse_data("transformed: the dataset, the transform or collate is null: give all three");
    if (dynamic_cast<const ordered_dataset*>(inner_.get()))
      refuse_data("transformed: a combined_dataset has no single samples: transform its members");
  }
  std::int64_t size() const override { return inner_->size(); }
  value get(std::span<const std::int64_t> indices) const override { return get_keyed(indices, {}); }
  value get_keyed(std::span<const std::int64_t> indices, const sample_keys& keys) const override {
    const auto batch = inner_->get_keyed(indices, keys);
    std::vector<value> samples;
    for (std::size_t i = 0; i < indices.size(); ++i) {
      const auto key = keys.of(indices[i], "transform");
      rank_random draws{key};
      const random_scope scope{draws};
      samples.push_back(transform_(sample_of(batch, i, indices.size()), key));
    }
    return collate_(std::move(samples));
  }

private:
  dataset_ptr inner_;
  std::function<value(value, std::uint64_t)> transform_;
  collate_function collate_;
};

class samples_of_torch final : public dataset {
public:
  samples_of_torch(std::int64_t size, detail::torch_fetch fetch)
      : size_(size), fetch_(std::move(fetch)) {}
  std::int64_t size() const override { return size_; }
  value get(std::span<const std::int64_t> indices) const override {
    const std::vector<std::size_t> which(indices.begin(), indices.end());
    const std::lock_guard lock{guard_};
    return fetch_(which);
  }

private:
  std::int64_t size_;
  detail::torch_fetch fetch_;
  mutable std::mutex guard_;
};

class data_of_parts final : public data_module {
public:
  explicit data_of_parts(data_parts parts) : parts_(std::move(parts)) {}
  std::string name() const override { return parts_.name; }
  dataset_ptr train() override { return parts_.train; }
  std::vector<dataset_ptr> validation() override { return parts_.validation; }
  std::vector<dataset_ptr> test() override { return parts_.test; }
  std::vector<dataset_ptr> predict() override {
    return parts_.predict.empty() ? parts_.test : parts_.predict;
  }
  data_loading loading(troupe::stage purpose, std::int32_t) override {
    return purpose == stage::train ? parts_.train_loading : parts_.evaluation_loading;
  }

private:
  data_parts parts_;
};

}  // namespace

dataset_ptr tensor_dataset(std::vector<at::Tensor> tensors) {
  return std::make_shared<tensors_in_memory>(std::move(tensors));
}
dataset_ptr function_dataset(std::int64_t size, std::function<value(std::int64_t)> sample,
                             collate_function how) {
  return std::make_shared<samples_by_function>(size, std::move(sample), std::move(how));
}
dataset_ptr stream_dataset(std::int64_t size, std::function<sample_stream(std::int64_t)> open,
                           collate_function how) {
  return std::make_shared<samples_of_stream>(size, std::move(open), std::move(how));
}
dataset_ptr transformed(dataset_ptr inner, std::function<value(value, std::uint64_t)> transform,
                        collate_function how) {
  return std::make_shared<transformed_samples>(std::move(inner), std::move(transform),
                                               std::move(how));
}
dataset_ptr detail::locked_dataset(std::int64_t size, torch_fetch fetch) {
  return std::make_shared<samples_of_torch>(size, std::move(fetch));
}
data_ptr make_data(data_parts parts) { return std::make_shared<data_of_parts>(std::move(parts)); }

}  // namespace troupe
