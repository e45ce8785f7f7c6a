#include "apps/testing/faults.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <ostream>

#include "troupe/failure.hpp"

namespace troupe::testing {

namespace {

// The label of a fault's draws. The number belongs to the name and never changes, so that a new
// fault moves no draw of another. 17 and 18 are free; numbers are at most 31.
struct known_fault {
  std::string_view name;
  std::uint32_t number;
};
constexpr std::array<known_fault, fault_kinds> known{{
    {"crash_rank", 0},
    {"crash_host", 1},
    {"crash_supervisor", 2},
    {"power_loss", 3},
    {"pause", 4},
    {"slow", 5},
    {"throw_in_hook", 6},
    {"out_of_memory", 7},
    {"not_a_number", 8},
    {"cut", 9},
    {"one_way_cut", 10},
    {"disconnect", 29},
    {"data_cut", 11},
    {"skew", 12},
    {"late_timers", 13},
    {"stop", 14},
    {"abort", 15},
    {"leave", 30},
    {"scale", 31},
    {"slow_reader", 16},
    {"rare_paths", 19},
    {"old_word", 28},
    {"storage_error", 20},
    {"storage_full", 21},
    {"storage_failed_sync", 22},
    {"storage_lost_sync", 23},
    {"storage_torn", 24},
    {"storage_bit_flip", 25},
    {"storage_slow", 26},
    {"storage_hang", 27},
}};
constexpr std::uint32_t number_of(fault f) { return known[static_cast<std::size_t>(f)].number; }

std::uint64_t pick(choices& from, site where, std::uint32_t who, const std::vector<fault>& kinds) {
  std::vector<std::uint64_t> keys;
  for (const auto f : kinds) keys.push_back(number_of(f));
  return from.pick(where, who, keys);
}

// The first fault that lasts for a whole attempt.
constexpr auto first_lasting = static_cast<std::size_t>(fault::rare_paths);
constexpr auto first_storage = static_cast<std::size_t>(fault::storage_error);

storage_fault::kind kind_of(fault f) {
  return static_cast<storage_fault::kind>(static_cast<std::size_t>(f) - first_storage + 1);
}

}  // namespace

std::string_view to_string(fault f) { return known[static_cast<std::size_t>(f)].name; }

fault fault_named(std::string_view name) {
  for (std::size_t i = 0; i < known.size(); ++i)
    if (known[i].name == name) return static_cast<fault>(i);
  std::string there;
  for (const auto& k : known) there += (there.empty() ? "" : ", ") + std::string{k.name};
  throw user_error(errc::bad_usage,
                   "unknown fault \"" + std::string{name} + "\"; known are: " + there);
}

std::string_view to_string(target t) {
  switch (t) {
    case target::rank: return "rank";
    case target::host: return "host";
    case target::program: return "program";
    case target::test_node: return "test node";
  }
  return "?";
}

bool applies_to(fault what, target whom) {
  if (whom == target::rank) return true;
  switch (what) {
    case fault::crash_rank: return whom == target::test_node;
    case fault::leave:
    case fault::slow_reader: return whom == target::host;
    case fault::slow: return whom == target::host || whom == target::program;
    case fault::cut:
    case fault::one_way_cut:
    case fault::disconnect: return whom == target::host || whom == target::test_node;
    case fault::pause:
    case fault::skew:
    case fault::late_timers: return true;
    default: return false;
  }
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
    auto name = text.substr(0, comma);
    while (name.starts_with(' ')) name.remove_prefix(1);
    while (name.ends_with(' ')) name.remove_suffix(1);
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
    if (has(static_cast<fault>(i))) out += (out.empty() ? "" : ",") + std::string{known[i].name};
  return out.empty() ? "none" : out;
}

std::ostream& operator<<(std::ostream& out, const scheduled_fault& s) {
  out << to_string(s.what) << " of ";
  if (s.whom != target::rank && applies_to(s.what, s.whom)) out << to_string(s.whom) << " of ";
  out << "rank " << s.rank << " at ";
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
    if (options.may.has(f) && from.draw(site::setup, 16 + number_of(f), 2) == 1) exist.add(f);
  }
  return exist;
}

fault_options draw_how_often(choices& from, const fault_options& options) {
  auto all = options;
  if (!options.swarm) return all;
  constexpr std::uint32_t faults_most = 16;  // the same bound as in a case
  constexpr std::uint32_t first_label = 48;  // between the labels of faults and those of attempts
  const auto one_of = [&](std::uint32_t label, std::uint32_t& given, auto... others) {
    const std::uint32_t values[]{given, static_cast<std::uint32_t>(others)...};
    given = values[from.draw(site::setup, first_label + label, std::size(values))];
  };
  if (options.per_attempt > 0)
    one_of(0, all.per_attempt, 1, std::min(options.per_attempt * 2, faults_most));
  if (options.fault_per_million > 0) one_of(1, all.fault_per_million, 200'000, 900'000);
  if (options.storage_per_million > 0) one_of(2, all.storage_per_million, 5'000, 100'000);
  return all;
}

attempt_faults draw_faults(choices& from, const fault_options& options, fault_set exist,
                           std::uint32_t attempt, std::int32_t ranks, nanoseconds span,
                           std::uint64_t events) {
  attempt_faults all;
  std::vector<fault> momentary;
  for (std::size_t i = 0; i < first_lasting; ++i)
    if (exist.has(static_cast<fault>(i))) momentary.push_back(static_cast<fault>(i));
  for (std::uint32_t i = 0; i < options.per_attempt && !momentary.empty(); ++i) {
    const auto who = attempt * options.per_attempt + i;
    if (!from.chance(site::fault, who, options.fault_per_million)) continue;
    scheduled_fault s;
    s.what = momentary[pick(from, site::detail, 256 + who, momentary)];
    s.by_event = from.draw(site::detail, 256 + who, 2) == 1;
    s.moment = s.by_event
                   ? from.draw(site::detail, 256 + who, events)
                   : from.draw(site::detail, 256 + who, static_cast<std::uint64_t>(span.count()));
    s.rank = static_cast<std::int32_t>(
        from.draw(site::detail, 256 + who, static_cast<std::uint64_t>(ranks)));
    s.amount = from.draw(site::detail, 256 + who, 16);
    s.where = from.draw(site::detail, 256 + who, std::uint64_t{1} << 32);
    constexpr std::array whom{target::rank, target::rank,    target::rank, target::rank,
                              target::host, target::program, target::host, target::test_node};
    s.whom = whom[from.draw(site::detail, 256 + who, whom.size())];
    all.scheduled.push_back(s);
  }
  const auto rate = [&](fault f) {
    if (!exist.has(f)) return std::uint32_t{0};
    const auto level = from.draw(site::setup, 64 + attempt * 32 + number_of(f), 4);
    return static_cast<std::uint32_t>(level * 20'000);
  };
  all.rare_paths = exist.has(fault::rare_paths);
  all.stale_messages_per_million = rate(fault::stale_message);
  for (std::size_t i = first_storage; i < fault_kinds; ++i)
    if (exist.has(static_cast<fault>(i))) all.storage.add(static_cast<fault>(i));
  if (!all.storage.empty()) all.storage_per_million = options.storage_per_million;
  return all;
}

namespace {

// Index of `gone` among the kinds of a range, in the order in which they are drawn.
struct index_of_kind {
  bool there = false;
  std::uint64_t index = 0;
};
index_of_kind index_of(fault_set exist, fault gone, std::size_t first, std::size_t end) {
  const auto g = static_cast<std::size_t>(gone);
  index_of_kind found{g >= first && g < end && exist.has(gone), 0};
  for (auto i = first; i < std::min(g, end); ++i)
    if (exist.has(static_cast<fault>(i))) ++found.index;
  return found;
}

std::uint64_t value_of(const std::vector<choice>& taken, site where, std::uint32_t who,
                       std::uint32_t occurrence) {
  for (const auto& c : taken)
    if (c.where == where && c.who == who && c.occurrence == occurrence) return c.value;
  return 0;
}

// A fault names its kind by its index among those that exist: site detail, occurrence 0.
void drop_faults(std::vector<choice>& list, std::uint64_t index) {
  const auto before = list;
  for (const auto& applied : before) {
    if (applied.where != site::fault) continue;
    const auto detail = 256 + applied.who;
    const auto kind = value_of(before, site::detail, detail, 0);
    if (kind == index)
      std::erase_if(list, [&](const choice& c) {
        return (c.where == site::fault && c.who == applied.who) ||
               (c.where == site::detail && c.who == detail);
      });
    else if (kind > index)
      for (auto& c : list)
        if (c.where == site::detail && c.who == detail && c.occurrence == 0) --c.value;
  }
  std::erase_if(list, [](const choice& c) { return c.value == 0; });
}

// The n-th failed operation drew kind, detail and length as number n.
void drop_storage(std::vector<choice>& list, std::uint64_t index) {
  std::vector<choice> applied;
  for (const auto& c : list)
    if (c.where == site::storage && c.who == 0) applied.push_back(c);
  std::ranges::sort(applied, {}, &choice::occurrence);
  const auto before = list;
  std::erase_if(list, [](const choice& c) { return c.where == site::storage; });
  std::uint32_t number = 0;
  for (std::uint32_t n = 0; n < applied.size(); ++n) {
    const auto kind = value_of(before, site::storage, 1, n);
    if (kind == index) continue;
    list.push_back(applied[n]);
    const auto add = [&](std::uint32_t who, std::uint64_t value) {
      if (value != 0) list.push_back({site::storage, who, number, value});
    };
    add(1, kind > index ? kind - 1 : kind);
    add(2, value_of(before, site::storage, 2, n));
    add(3, value_of(before, site::storage, 3, n));
    ++number;
  }
}

}  // namespace

std::vector<choice> without_fault(const std::vector<choice>& taken, fault_set exist, fault gone) {
  auto list = taken;
  if (const auto at = index_of(exist, gone, 0, first_lasting); at.there)
    drop_faults(list, at.index);
  if (const auto at = index_of(exist, gone, first_storage, fault_kinds); at.there)
    drop_storage(list, at.index);
  return list;
}

std::vector<choice> alone(const std::vector<choice>& taken, const choice& which) {
  std::vector<choice> list;
  for (auto c : taken) {
    const bool is_fault = c.where == site::fault;
    const bool detail = c.where == site::detail && c.who >= 256;
    if ((is_fault && c.who != which.who) || (detail && c.who != 256 + which.who)) continue;
    if (is_fault || detail) c.who -= which.who;
    list.push_back(c);
  }
  return list;
}

storage_fault draw_storage_fault(choices& from, const attempt_faults& of) {
  storage_fault f;
  if (!from.chance(site::storage, 0, of.storage_per_million)) return f;
  std::vector<fault> kinds;
  for (std::size_t i = first_storage; i < fault_kinds; ++i)
    if (of.storage.has(static_cast<fault>(i))) kinds.push_back(static_cast<fault>(i));
  f.what = kind_of(kinds[pick(from, site::storage, 1, kinds)]);
  f.draw = from.draw(site::storage, 2, std::uint64_t{1} << 32);
  f.lasts = std::chrono::milliseconds{1 + from.draw(site::storage, 3, 2000)};
  return f;
}

}  // namespace troupe::testing
