#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <span>
#include <sstream>
#include <type_traits>

#include "apps/testing/case.hpp"
#include "apps/testing/null_payload.hpp"
#include "troupe/failure.hpp"

namespace troupe::testing {

namespace {

[[noreturn]] void refuse(std::string_view line, std::string_view why) {
  constexpr std::size_t shown = 120;
  throw user_error(errc::bad_usage,
                   fmt::format("not a case: {}: \"{}{}\"", why, line.substr(0, shown),
                               line.size() > shown ? "..." : ""));
}

template <class Number>
Number number(std::string_view text, std::string_view line) {
  Number x = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), x);
  if (error == std::errc::result_out_of_range)
    refuse(line, fmt::format("\"{}\" is too large", text));
  if (error != std::errc{} || end != text.data() + text.size())
    refuse(line, fmt::format("\"{}\" is not a number", text));
  return x;
}

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

// Returns the piece before `by` and removes it from `rest`.
std::string_view cut(std::string_view& rest, char by) {
  const auto at = rest.find(by);
  const auto piece = rest.substr(0, at);
  rest = at == std::string_view::npos ? std::string_view{} : rest.substr(at + 1);
  return piece;
}

// Bounds of a field: a case from an unknown source must not take all memory or run for ever.
struct bounds {
  std::int64_t least = 0;
  std::int64_t most = std::numeric_limits<std::int64_t>::max();
};
constexpr bounds positive{1};
constexpr bounds yes_or_no{0, 1};
constexpr bounds an_hour{0, std::chrono::nanoseconds{std::chrono::hours{1}}.count()};

// Calls `visit(name, field, bounds)` for each field.
template <class F>
void job_fields(job_spec& job, F visit) {
  visit("ranks", job.ranks, bounds{1, 100'000});
  visit("steps", job.steps, bounds{1, 1'000'000});
  visit("samples", job.samples, bounds{1, 10'000'000});
  visit("batch_size", job.batch_size, bounds{1, 1'000'000});
  visit("accumulate", job.accumulate, bounds{1, 1'000'000});
  visit("checkpoint_every", job.checkpoint_every, positive);
  visit("width", job.width, bounds{1, 1 << 20});
  visit("buffers", job.buffers, yes_or_no);
  visit("fine", job.one_hook_per_run, yes_or_no);
  visit("seed", job.seed, bounds{});
  visit("detect", job.detect, bounds{1'000'000, an_hour.most});
  visit("hook_limit", job.hook_limit, bounds{1'000'000, an_hour.most});
  visit("max_restarts", job.max_restarts, bounds{0, 1000});
  visit("on_loss", job.on_loss,
        bounds{0, static_cast<std::int64_t>(elastic_options::loss::shrink)});
  visit("min_ranks", job.min_ranks, bounds{1, 100'000});
  visit("spares", job.spares, bounds{0, 1000});
  visit("processes", job.processes, bounds{0, 100'000});
  visit("collectives", job.collectives, yes_or_no);
}

template <class F>
void plan_fields(run_plan& plan, F visit) {
  visit("schedule", plan.simulation.schedule,
        bounds{0, static_cast<std::int64_t>(scheduling::pct)});
  visit("depth", plan.simulation.depth, bounds{0, 1000});
  visit("horizon", plan.simulation.horizon, positive);
  visit("elastic", plan.simulation.elastic, an_hour);
  visit("ranks_per_host", plan.cluster.ranks_per_host, bounds{0, 100'000});
  visit("compute", plan.cluster.compute, an_hour);
  visit("compute_spread", plan.cluster.compute_spread, bounds{0, 2000});
  visit("control_latency", plan.cluster.control_latency, an_hour);
  visit("start", plan.cluster.start, an_hour);
  visit("placed", plan.cluster.placed, yes_or_no);
  visit("spans", plan.cluster.lanes_in_spans, yes_or_no);
  visit("swarm", plan.faults.swarm, yes_or_no);
  visit("faults_per_attempt", plan.faults.per_attempt, bounds{0, 16});
  visit("fault_per_million", plan.faults.fault_per_million, bounds{0, 1'000'000});
  visit("storage_per_million", plan.faults.storage_per_million, bounds{0, 1'000'000});
  visit("attempts", plan.attempts, bounds{1, 1000});
  visit("events_limit", plan.events_limit, positive);
  visit("watched", plan.observer, bounds{0, static_cast<std::int64_t>(test_observer::dead)});
}

// Counts the parts of a run that have no text: code and costs of the recording test.
struct brought {
  std::int64_t extensions = 0;
  std::int64_t marks = 0;
  std::int64_t network = 0;
  std::int64_t slow_hosts = 0;
};

bool same(const wire_cost& a, const wire_cost& b) {
  return a.alpha == b.alpha && a.nanoseconds_per_byte == b.nanoseconds_per_byte;
}

brought brought_by(const run_plan& plan) {
  const auto& n = plan.cluster.network;
  const network_cost usual;
  const bool other = !same(n.between, usual.between) || !same(n.inside, usual.inside) ||
                     n.per_host != usual.per_host;
  return {std::ssize(plan.extensions), std::ssize(plan.marks), other ? 1 : 0,
          std::ssize(plan.cluster.slow_hosts)};
}

template <class F>
void brought_fields(brought& what, F visit) {
  constexpr bounds some{0, 1'000'000};
  visit("extensions", what.extensions, some);
  visit("marks", what.marks, some);
  visit("network", what.network, some);
  visit("slow_nodes", what.slow_hosts, some);
}

// Returns one sentence, or nothing when no part is missing.
std::string missing_text(brought had, brought here) {
  std::string list;
  const auto add = [&list](std::int64_t before, std::int64_t now, std::string_view what) {
    if (now >= before) return;
    list += fmt::format("{}{} (the recorded run had {}, here are {})", list.empty() ? "" : ", ",
                        what, before, now);
  };
  add(had.extensions, here.extensions, "its extensions");
  add(had.marks, here.marks, "its user coverage points");
  add(had.network, here.network, "its network costs");
  add(had.slow_hosts, here.slow_hosts, "its slow hosts");
  if (list.empty()) return {};
  return fmt::format(
      "the case cannot be replayed without {}: they are in the test that recorded it, which "
      "replays "
      "it by parse_case(text, plan) with its own plan",
      list);
}

// Converts a field to text and back. Seeds use all 64 bits; other fields have bounds.
template <class T>
std::string text_of(const T& field) {
  if constexpr (std::is_same_v<T, nanoseconds>)
    return std::to_string(field.count());
  else if constexpr (std::is_enum_v<T>)
    return std::to_string(static_cast<std::int64_t>(field));
  else
    return std::to_string(field);
}

template <class T>
void read_field(T& field, std::string_view text, bounds within, std::string_view line) {
  if constexpr (std::is_same_v<T, std::uint64_t>) {
    field = number<std::uint64_t>(text, line);
    const bool all_bits = within.most == std::numeric_limits<std::int64_t>::max();
    if (field >= static_cast<std::uint64_t>(within.least) &&
        (all_bits || field <= static_cast<std::uint64_t>(within.most)))
      return;
  } else {
    const auto x = number<std::int64_t>(text, line);
    if (x >= within.least && x <= within.most) {
      if constexpr (std::is_same_v<T, nanoseconds>)
        field = nanoseconds{x};
      else
        field = static_cast<T>(x);
      return;
    }
  }
  refuse(line, fmt::format("\"{}\" is not within {} .. {}", text, within.least, within.most));
}

template <class Fields>
std::string fields_text(Fields fields) {
  std::string out;
  fields([&](std::string_view name, const auto& field, bounds) {
    out += fmt::format(" {}={}", name, text_of(field));
  });
  return out;
}

// The name of a field; older cases have names of their own for three of them.
std::string_view name_of_field(std::string_view read) {
  static constexpr std::pair<std::string_view, std::string_view> older[] = {
      {"guests", "extensions"},
      {"strikes", "faults_per_attempt"},
      {"strike_per_million", "fault_per_million"}};
  const auto* found = std::ranges::find(older, read, [](const auto& p) { return p.first; });
  return found == std::end(older) ? read : found->second;
}

template <class Fields>
void read_fields(std::string_view rest, std::string_view line, Fields fields) {
  std::vector<std::string_view> seen;
  while (!rest.empty()) {
    auto value = cut(rest, ' ');
    if (value.empty()) continue;
    const auto whole = value;
    const auto wanted = name_of_field(cut(value, '='));
    if (whole.find('=') == std::string_view::npos)
      refuse(line, fmt::format("\"{}\" is not NAME=NUMBER", whole));
    bool known = false;
    fields([&](std::string_view name, auto& field, bounds within) {
      if (name != wanted) return;
      read_field(field, value, within, line);
      known = true;
    });
    if (!known) refuse(line, fmt::format("unknown field \"{}\"", wanted));
    if (std::ranges::find(seen, wanted) != seen.end())
      refuse(line, fmt::format("a second field \"{}\"", wanted));
    seen.push_back(wanted);
  }
}

choice parse_choice(std::string_view text, std::string_view line) {
  auto rest = text;
  const auto where = cut(rest, '.');
  const auto who = cut(rest, '.');
  const auto occurrence = cut(rest, '=');
  if (std::ranges::count(text, '.') != 2 || text.find('=') == std::string_view::npos)
    refuse(line, fmt::format("\"{}\" is not SITE.WHO.OCCURRENCE=VALUE", text));
  choice c;
  int s = 0;
  while (s < static_cast<int>(site::count_) && to_string(static_cast<site>(s)) != where) ++s;
  if (s == static_cast<int>(site::count_)) refuse(line, fmt::format("unknown site \"{}\"", where));
  c.where = static_cast<site>(s);
  c.who = number<std::uint32_t>(who, line);
  c.occurrence = number<std::uint32_t>(occurrence, line);
  c.value = number<std::uint64_t>(rest, line);
  if (c.who >= choices::who_max) refuse(line, fmt::format("\"{}\" is too large", who));
  return c;
}

std::vector<choice> parse_choices(std::string_view rest, std::string_view line) {
  std::vector<choice> all;
  while (!rest.empty())
    if (const auto one = cut(rest, ' '); !one.empty()) all.push_back(parse_choice(one, line));
  return all;
}

// Names of coverage points may contain commas: the longest known one is meant.
std::vector<std::string> parse_meets(std::string_view rest, std::span<const user_coverage> own) {
  std::vector<std::string_view> known{known_marks().begin(), known_marks().end()};
  for (const auto& m : own) known.push_back(m.text);
  std::vector<std::string> all;
  for (rest = trimmed(rest); !rest.empty(); rest = trimmed(rest)) {
    std::size_t size = 0;
    for (const auto name : known)
      if (rest.starts_with(name) && (rest.size() == name.size() || rest[name.size()] == ','))
        size = std::max(size, name.size());
    std::string one{rest.substr(0, size)};
    rest.remove_prefix(size);
    one += trimmed(cut(rest, ','));
    if (!one.empty()) all.push_back(std::move(one));
  }
  return all;
}

fault_set parse_faults(std::string_view rest, std::string_view line) {
  try {
    return fault_set::parse(rest);
  } catch (const user_error& e) {
    refuse(line, e.what());
  }
}

class reader {
public:
  explicit reader(const run_plan& with) : payload_(with.payload), here_(brought_by(with)) {
    case_.what.plan.extensions = with.extensions;
    case_.what.plan.marks = with.marks;
    case_.what.plan.cluster.network = with.cluster.network;
    case_.what.plan.cluster.slow_hosts = with.cluster.slow_hosts;
  }

  run_case read(std::string_view text) {
    while (!text.empty()) {
      const auto line = trimmed(cut(text, '\n'));
      if (!line.empty() && line.front() != '#') one(line);
    }
    if (!seen("troupe-case/2")) refuse("", "it is empty");
    if (!seen("seed")) refuse("", "it has no seed");
    if (!seen("end")) refuse("", "the last line \"end\" is missing");
    if (const auto missing = missing_text(had_, here_); !missing.empty())
      throw user_error(errc::bad_usage, missing);
    return std::move(case_);
  }

private:
  bool seen(std::string_view word) const { return std::ranges::find(seen_, word) != seen_.end(); }

  void one(std::string_view line) {
    auto rest = line;
    const auto word = cut(rest, ' ');
    rest = trimmed(rest);
    if (seen_.empty() && word != "troupe-case/2")
      refuse(line, "the first line must be troupe-case/2");
    if (seen("end")) refuse(line, "there is text after the line \"end\"");
    if (seen(word)) refuse(line, fmt::format("a second line \"{}\"", word));
    take(word, rest, line);
    seen_.emplace_back(word);
  }

  void take(std::string_view word, std::string_view rest, std::string_view line) {
    if (word == "troupe-case/2" || word == "end") {
      if (!rest.empty()) refuse(line, "this line takes no arguments");
    } else if (word == "build") {
      case_.build = rest;
    } else if (word == "expect") {
      case_.expect = rest;
    } else if (word == "meets") {
      case_.meets = parse_meets(rest, case_.what.plan.marks);
    } else if (word == "job") {
      read_fields(rest, line, [&](auto f) { job_fields(case_.what.job, f); });
    } else if (word == "plan") {
      read_fields(rest, line, [&](auto f) { plan_fields(case_.what.plan, f); });
    } else if (word == "brings") {
      read_fields(rest, line, [&](auto f) { brought_fields(had_, f); });
    } else if (word == "payload") {
      case_.what.plan.payload = payload_named(rest, line);
    } else if (word == "faults") {
      case_.what.plan.faults.may = parse_faults(rest, line);
    } else if (word == "seed") {
      case_.seed = number<std::uint64_t>(rest, line);
    } else if (word == "choices") {
      case_.taken = parse_choices(rest, line);
    } else {
      refuse(line, fmt::format("unknown line \"{}\"", word));
    }
  }

  std::shared_ptr<payload> payload_named(std::string_view name, std::string_view line) const {
    // Older cases say `field` for the integer payload and `ghost` for the null payload.
    if (name == "integers" || name == "field") return {};
    if (name == "ghost") name = "none";
    if (payload_ && payload_->name() == name) return payload_;
    auto none = null_payload();
    if (name != none->name())
      refuse(line, fmt::format("unknown payload \"{}\"; the test that defines it replays the case "
                               "by parse_case(text, plan) with its own plan",
                               name));
    return none;
  }

  run_case case_;
  std::vector<std::string> seen_;
  std::shared_ptr<payload> payload_;
  brought had_;
  const brought here_;
};

}  // namespace

void check_limits(variant what) {
  const auto check = [](std::string_view name, auto& field, bounds within) {
    const auto text = text_of(field);
    read_field(field, text, within, fmt::format("{}={}", name, text));
  };
  job_fields(what.job, check);
  plan_fields(what.plan, check);
}

std::string to_text(const run_case& what) {
  std::ostringstream out;
  auto v = what.what;
  out << "troupe-case/2\n";
  if (!what.build.empty()) out << "build " << what.build << '\n';
  if (!what.expect.empty()) out << "expect " << what.expect << '\n';
  if (!what.meets.empty()) out << fmt::format("meets {}\n", fmt::join(what.meets, ", "));
  out << "job" << fields_text([&](auto f) { job_fields(v.job, f); }) << "\nplan"
      << fields_text([&](auto f) { plan_fields(v.plan, f); });
  auto had = brought_by(v.plan);
  if (!missing_text(had, {}).empty())
    out << "\nbrings" << fields_text([&](auto f) { brought_fields(had, f); });
  if (v.plan.payload) out << "\npayload " << v.plan.payload->name();
  out << "\nfaults " << v.plan.faults.may.text() << "\nseed " << what.seed << '\n';
  if (what.taken) {
    out << "choices";
    for (const auto& c : *what.taken) out << ' ' << c;
    out << '\n';
  }
  out << "end\n";
  return out.str();
}

run_case parse_case(std::string_view text, const run_plan& with) { return reader{with}.read(text); }

}  // namespace troupe::testing
