#include "actors/failure_record.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string_view>
#include <tuple>
#include <utility>

#include "troupe/detail/coverage.hpp"

namespace troupe {

namespace {

// Orders first causes by generation, step and sequence. Failures that follow from another come
// last.
bool earlier(const failure& a, const failure& b) {
  const auto key = [](const failure& f) {
    return std::tuple{f.follows, f.generation, f.step, f.sequence, f.rank};
  };
  return key(a) < key(b);
}

bool any_has(const std::vector<failure>& all, failure_id id) {
  return std::ranges::any_of(all, [&](const failure& f) { return f.id == id; });
}

void add(stable_hasher& hash, const failure& f) {
  hash.add(std::string_view{f.type}).add(std::string_view{f.what}).add(f.rank);
  hash.add(std::string_view{f.hook}).add(f.step).add(f.generation).add(f.sequence).add(f.follows);
  hash.add(f.kind).add(f.id.incarnation.value()).add(f.id.sequence);
}

}  // namespace

bool curable(const failure& what, const elastic_options& elastic) {
  switch (what.kind) {
    case failure_kind::aborted:
    case failure_kind::session_closed:
    case failure_kind::actor_error:
    case failure_kind::unexpected_message: return false;
    default: break;
  }
  switch (what.code) {
    case errc::bad_usage:
    case errc::bad_configuration:
    case errc::checkpoint:
    case errc::device:
    case errc::internal: return false;
    default: break;
  }
  return what.kind != failure_kind::exception || what.follows ||
         elastic.exceptions == elastic_options::on_exception::restart;
}

// SIGKILL, SIGSTOP and the loss of a connection come from outside of the process.
bool comes_back(const failure& what, const failure& before) {
  const bool from_outside =
      what.signal == "SIGKILL" || what.signal == "SIGSTOP" || what.kind == failure_kind::lost;
  if (from_outside) return false;
  // An exception may be thrown on every rank, and each time another one is the first.
  const bool anywhere = what.kind == failure_kind::exception;
  return what.kind == before.kind && what.type == before.type && what.signal == before.signal &&
         what.hook == before.hook && (anywhere || what.rank == before.rank);
}

failure_id failure_record::next_id() const {
  return {incarnation_id{}, before_ + (first_ ? 1 : 0) + others_.size() + late_.size() + 1};
}

void failure_record::add(failure what) {
  if (!what.id) what.id = next_id();
  if (!first_) {
    first_ = std::move(what);
    return;
  }
  if (sometimes(earlier(what, *first_), coverage_point::earlier_cause)) std::swap(what, *first_);
  add_other(std::move(what));
}

void failure_record::add_other(failure what) {
  others_.insert(std::ranges::upper_bound(others_, what, earlier), std::move(what));
}

void failure_record::add_late(failure what) {
  if (!what.id) what.id = next_id();
  const auto alike = [&](const failure& f) { return f.code == what.code && f.hook == what.hook; };
  if (what.code == errc::checkpoint && std::ranges::count_if(late_, alike) > 1) {
    const auto newest = std::ranges::find_if(late_.rbegin(), late_.rend(), alike);
    late_.erase(std::next(newest).base());
    ++before_;
    what.what += fmt::format(" ({} failures like this are left out between the first and this one)",
                             ++left_out_[what.hook]);
  }
  late_.push_back(std::move(what));
}

void failure_record::end_job(failure what) {
  if (is_first(what.id)) return;
  std::erase_if(late_, [&](const failure& f) { return f.id == what.id; });
  if (first_)
    late_.push_back(std::move(what));
  else
    first_ = std::move(what);
}

void failure_record::begin_generation() {
  before_ += (first_ ? 1 : 0) + others_.size();
  first_.reset();
  others_.clear();
}

std::optional<failure> failure_record::whole() const {
  auto all = first_;
  if (all) all->others = others_;
  return all;
}

bool failure_record::holds(failure_id id) const { return is_first(id) || any_has(others_, id); }

bool failure_record::is_late(failure_id id) const { return any_has(late_, id); }

void failure_record::add_to(stable_hasher& hash) const {
  hash.add(first_.has_value());
  if (first_) troupe::add(hash, *first_);
  hash.add(others_.size());
  for (const auto& f : others_) troupe::add(hash, f);
  hash.add(late_.size());
  for (const auto& f : late_) troupe::add(hash, f);
  hash.add(before_);
  for (const auto& [hook, count] : left_out_) hash.add(std::string_view{hook}).add(count);
}

}  // namespace troupe
