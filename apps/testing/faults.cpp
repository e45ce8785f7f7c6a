#include "apps/testing/faults.hpp"

#include <array>
#include <ostream>

#include "messages/failure.hpp"

namespace troupe::testing {

namespace {

constexpr std::array<std::string_view, fault_kinds> names{"crash_rank",
                                                          "crash_host",
                                                          "crash_supervisor",
                                                          "power_loss",
                                                          "pause",
                                                          "slow",
                                                          "throw_in_hook",
                                                          "out_of_memory",
                                                          "cut",
                                                          "one_way_cut",
                                                          "data_cut",
                                                          "skew",
                                                          "late_timers",
                                                          "stop",
                                                          "abort",
                                                          "lose",
                                                          "repeat",
                                                          "reorder",
                                                          "rare_paths",
                                                          "storage_error",
                                                          "storage_full",
                                                          "storage_failed_sync",
                                                          "storage_lost_sync",
                                                          "storage_torn",
                                                          "storage_bit_flip",
                                                          "storage_slow",
                                                          "storage_hang"};

// The first fault that lasts along an attempt.
constexpr auto first_lasting = static_cast<std::size_t>(fault::lose);
constexpr auto first_storage = static_cast<std::size_t>(fault::storage_error);

storage_fault::kind kind_of(fault f) {
  return static_cast<storage_fault::kind>(static_cast<std::size_t>(f) - first_storage + 1);
}

}  // namespace

std::string_view to_string(fault f) { return names[static_cast<std::size_t>(f)]; }

fault fault_named(std::string_view name) {
  for (std::size_t i = 0; i < names.size(); ++i)
    if (names[i] == name) return static_cast<fault>(i);
  std::string known;
  for (const auto n : names) known += (known.empty() ? "" : ", ") + std::string{n};
  throw user_error(errc::bad_usage,
                   "there is no fault \"" + std::string{name} + "\"; there are: " + known);
}

fault_set fault_set::all() {
  fault_set s;
  for (std::size_t i = 0; i < fault_kinds; ++i) s.add(static_cast<fault>(i));
  return s;
}

fault_set fault_set::parse(std::string_view text) {
  fault_set s;
  while (!text.empty()) {
    const auto comma = text.find(',');
    const auto name = text.substr(0, comma);
    if (name == "all")
      s = all();
    else if (name != "none")
      s.add(fault_named(name));
    text = comma == std::string_view::npos ? std::string_view{} : text.substr(comma + 1);
  }
  return s;
}

std::string fault_set::text() const {
  std::string out;
  for (std::size_t i = 0; i < fault_kinds; ++i)
    if (has(static_cast<fault>(i))) out += (out.empty() ? "" : ",") + std::string{names[i]};
  return out.empty() ? "none" : out;
}

std::ostream& operator<<(std::ostream& out, const strike& s) {
  out << to_string(s.what) << " of rank " << s.rank << " at ";
  if (s.by_event)
    out << "event " << s.moment;
  else
    out << s.moment / 1000 << " us";
  return out << " (" << s.amount << ", " << s.where << ')';
}

fault_set draw_swarm(choices& from, const fault_options& options) {
  if (!options.swarm) return options.may;
  fault_set exist;
  for (std::size_t i = 0; i < fault_kinds; ++i) {
    const auto f = static_cast<fault>(i);
    if (options.may.has(f) && from.draw(site::setup, static_cast<std::uint32_t>(16 + i), 2) == 1)
      exist.add(f);
  }
  return exist;
}

attempt_faults draw_faults(choices& from, const fault_options& options, fault_set exist,
                           std::uint32_t attempt, std::int32_t ranks, nanoseconds span,
                           std::uint64_t events) {
  attempt_faults all;
  std::vector<fault> striking;
  for (std::size_t i = 0; i < first_lasting; ++i)
    if (exist.has(static_cast<fault>(i))) striking.push_back(static_cast<fault>(i));
  for (std::uint32_t i = 0; i < options.strikes && !striking.empty(); ++i) {
    const auto who = attempt * options.strikes + i;
    if (!from.chance(site::fault, who, options.strike_per_million)) continue;
    strike s;
    s.what = striking[from.draw(site::detail, 256 + who, striking.size())];
    s.by_event = from.draw(site::detail, 256 + who, 2) == 1;
    s.moment = s.by_event
                   ? from.draw(site::detail, 256 + who, events)
                   : from.draw(site::detail, 256 + who, static_cast<std::uint64_t>(span.count()));
    s.rank = static_cast<std::int32_t>(
        from.draw(site::detail, 256 + who, static_cast<std::uint64_t>(ranks)));
    s.amount = from.draw(site::detail, 256 + who, 16);
    s.where = from.draw(site::detail, 256 + who, std::uint64_t{1} << 32);
    all.strikes.push_back(s);
  }
  const auto rate = [&](fault f) {
    if (!exist.has(f)) return std::uint32_t{0};
    const auto level = from.draw(site::setup, 64 + attempt * 32 + static_cast<std::uint32_t>(f), 4);
    return static_cast<std::uint32_t>(level * 20'000);
  };
  all.path = {rate(fault::lose), rate(fault::repeat), rate(fault::reorder)};
  all.rare_paths = exist.has(fault::rare_paths);
  for (std::size_t i = first_storage; i < fault_kinds; ++i)
    if (exist.has(static_cast<fault>(i))) all.storage.add(static_cast<fault>(i));
  if (!all.storage.empty()) all.storage_per_million = 30'000;
  return all;
}

storage_fault draw_storage_fault(choices& from, const attempt_faults& of) {
  storage_fault f;
  if (!from.chance(site::storage, 0, of.storage_per_million)) return f;
  std::vector<fault> kinds;
  for (std::size_t i = first_storage; i < fault_kinds; ++i)
    if (of.storage.has(static_cast<fault>(i))) kinds.push_back(static_cast<fault>(i));
  f.what = kind_of(kinds[from.draw(site::storage, 1, kinds.size())]);
  f.draw = from.draw(site::storage, 2, std::uint64_t{1} << 32);
  f.lasts = std::chrono::milliseconds{1 + from.draw(site::storage, 3, 2000)};
  return f;
}

}  // namespace troupe::testing
