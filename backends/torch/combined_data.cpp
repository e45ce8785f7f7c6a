#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <deque>
#include <mutex>
#include <set>

#include "backends/torch/ordered_dataset.hpp"
#include "troupe/data.hpp"
#include "troupe/failure.hpp"

namespace troupe {

namespace {

[[noreturn]] void refuse_members(const std::string& what) {
  throw user_error(errc::job_failed, "combined_dataset: " + what);
}

void check(const std::vector<combined_member>& members) {
  if (members.empty()) refuse_members("there is no member: give at least one dataset");
  std::set<std::string> names;
  for (std::size_t i = 0; i < members.size(); ++i) {
    const auto& one = members[i];
    if (!one.data || one.data->size() < 1)
      refuse_members(fmt::format("member {} has no samples: leave it out", i));
    if (one.samples < 1) refuse_members(fmt::format("member {}: samples must be 1 or more", i));
    if (dynamic_cast<const ordered_dataset*>(one.data.get()))
      refuse_members(fmt::format("member {} is a combined_dataset: give its members instead", i));
    if (one.name.empty() != members[0].name.empty())
      refuse_members("some members have a name and some have none: name all of them, or none");
    if (!one.name.empty() && !names.insert(one.name).second)
      refuse_members(fmt::format("two members have the name \"{}\": give each its own", one.name));
  }
}

/// Orders of members that ranks and their threads need at the same time. Thread-safe.
class order_cache {
public:
  using list = std::shared_ptr<const std::vector<std::int64_t>>;
  explicit order_cache(std::size_t most) : most_(most) {}

  /// permutation(seed, epoch, size).
  list of(std::uint64_t seed, std::int64_t epoch, std::int64_t size) {
    const std::lock_guard lock{guard_};
    for (const auto& one : kept_)
      if (one.seed == seed && one.epoch == epoch) return one.order;
    kept_.push_front(
        {seed, epoch,
         std::make_shared<const std::vector<std::int64_t>>(permutation(seed, epoch, size))});
    if (kept_.size() > most_) kept_.pop_back();
    return kept_.front().order;
  }

private:
  struct known {
    std::uint64_t seed = 0;
    std::int64_t epoch = 0;
    list order;
  };
  std::size_t most_;
  std::mutex guard_;
  std::deque<known> kept_;  // the newest first
};

class samples_together final : public ordered_dataset {
public:
  samples_together(std::vector<combined_member> members, combined_mode mode)
      : orders_(orders_of_member * members.size()) {
    std::vector<std::int64_t> passes;
    for (const auto& one : members) passes.push_back(1 + (one.data->size() - 1) / one.samples);
    size_ = mode == combined_mode::min_size ? std::ranges::min(passes) : std::ranges::max(passes);
    std::int64_t first = 0;
    for (std::size_t i = 0; i < members.size(); ++i) {
      members_.push_back({std::move(members[i]), passes[i], first, size_});
      auto& one = members_.back();
      if (mode == combined_mode::max_size) one.last = passes[i];
      if (mode == combined_mode::sequential) first = one.last = first + passes[i];
    }
    if (mode == combined_mode::sequential) size_ = first;
  }

  std::int64_t size() const override { return size_; }
  value get_keyed(std::span<const std::int64_t> places, const sample_keys& keys) const override {
    return get_ordered(places, keys, false);
  }
  value get_ordered(std::span<const std::int64_t> places, const sample_keys& keys,
                    bool shuffled) const override {
    value_map named;
    value_tuple unnamed;
    for (std::size_t i = 0; i < members_.size(); ++i) {
      const auto& one = members_[i];
      const sample_keys own{stable_hasher{}.add(keys.seed).add("combined").add(i).digest(),
                            keys.epoch};
      const auto which = samples_of(one, places, own, shuffled);
      auto part = which.empty() ? value{} : one.what.data->get_keyed(which, own);
      if (one.what.name.empty())
        unnamed.items.push_back(std::move(part));
      else
        named.items.emplace(one.what.name, std::move(part));
    }
    return unnamed.items.empty() ? value{std::move(named)} : value{std::move(unnamed)};
  }

private:
  static constexpr std::size_t orders_of_member = 4;
  struct member {
    combined_member what;
    std::int64_t pass = 0;   ///< entries until it has read all its samples
    std::int64_t first = 0;  ///< entries first .. last - 1 have samples of it
    std::int64_t last = 0;
  };

  std::vector<std::int64_t> samples_of(const member& one, std::span<const std::int64_t> places,
                                       const sample_keys& own, bool shuffled) const {
    std::vector<std::int64_t> which;
    const auto size = one.what.data->size();
    order_cache::list order;
    std::int64_t order_of_pass = -1;
    for (const auto place : places) {
      if (place < one.first || place >= one.last) continue;
      const auto pass = (place - one.first) / one.pass;
      if (shuffled && pass != order_of_pass) {
        order = orders_.of(stable_hasher{}.add(own.seed).add(pass).digest(), own.epoch, size);
        order_of_pass = pass;
      }
      const auto begin = (place - one.first) % one.pass * one.what.samples;
      for (auto i = begin; i < std::min(begin + one.what.samples, size); ++i)
        which.push_back(order ? (*order)[static_cast<std::size_t>(i)] : i);
    }
    return which;
  }

  std::int64_t size_ = 0;
  std::vector<member> members_;
  mutable order_cache orders_;
};

batch part_with(const value& part, const batch& whole) {
  if (part.empty()) return {};
  for (const auto& one : tensors_of(part))
    if (one.dim() > 0) return {part, one.size(0)};
  const auto* list = part.get_if<value_list>();
  return {part, list ? static_cast<std::int64_t>(list->items.size()) : whole.samples()};
}

}  // namespace

dataset_ptr combined_dataset(std::vector<combined_member> members, combined_mode mode) {
  check(members);
  return std::make_shared<samples_together>(std::move(members), mode);
}

dataset_ptr combined_dataset(const std::vector<dataset_ptr>& members, combined_mode mode) {
  std::vector<combined_member> unnamed;
  for (const auto& one : members) unnamed.push_back({.data = one});
  return combined_dataset(std::move(unnamed), mode);
}

batch part_of(const batch& whole, std::string_view member) {
  const auto* map = whole.get().get_if<value_map>();
  const auto found = map ? map->items.find(std::string{member}) : decltype(map->items.end()){};
  if (map && found != map->items.end()) return part_with(found->second, whole);
  std::vector<std::string_view> names;
  if (map)
    for (const auto& [name, part] : map->items) names.push_back(name);
  throw std::out_of_range(
      fmt::format("the batch has no part \"{}\"; it has {}", member,
                  map ? fmt::format("{}", fmt::join(names, ", ")) : to_string(whole.get())));
}

batch part_of(const batch& whole, std::size_t member) {
  const auto* tuple = whole.get().get_if<value_tuple>();
  if (tuple && member < tuple->items.size()) return part_with(tuple->items[member], whole);
  throw std::out_of_range(
      fmt::format("the batch has no part {}; it is {}", member, to_string(whole.get())));
}

}  // namespace troupe
