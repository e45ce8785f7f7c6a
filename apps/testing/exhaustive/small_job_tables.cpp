#include "apps/testing/exhaustive/small_job_tables.hpp"

#include <algorithm>
#include <tuple>

namespace troupe::testing {

namespace {

constexpr job_id the_job{9};

incarnation_id incarnation_of(std::int32_t rank) {
  return incarnation_id{static_cast<std::uint64_t>(100 + rank)};
}

fit_plan plan_of(const exhaustive_options& options) {
  trainer_options how;
  how.ranks = options.ranks;
  how.max_epochs = 1;
  how.num_sanity_val_steps = 0;
  how.checkpoint.enabled = false;
  how.one_hook_per_run = options.one_hook_per_run;
  how.elastic.max_restarts = options.restarts;
  return make_plan(how, stage::train);
}

std::uint64_t key_of(std::uint32_t a, std::uint32_t b) { return std::uint64_t{a} << 32 | b; }

}  // namespace

small_job_tables::small_job_tables(const exhaustive_options& options, rank_permutations symmetry)
    : options_(options),
      symmetry_(std::move(symmetry)),
      rank_images_(symmetry_.size()),
      supervisor_images_(symmetry_.size()),
      message_images_(symmetry_.size()),
      queue_images_(symmetry_.size()) {
  queues_.emplace_back();
  rests_.push_back(0);
  known_queues_[{}] = 0;
  rank_outcomes_.emplace_back();  // 0 means none
  supervisor_outcomes_.emplace_back();
  stop_ = number_of(supervision::event{request_stop{stop_reason::caller}});
  abort_ = number_of(supervision::event{request_abort{"the caller has had enough"}});
  for (std::size_t p = 0; p < symmetry_.size(); ++p)
    for (const auto message : {stop_, abort_}) link_message(message, p, message);
}

part_number small_job_tables::fresh_rank(std::int32_t rank, incarnation_id incarnation) {
  const auto limits = derive({});
  return number_of(
      rank_part{rank_machine{{the_job, rank, incarnation, plan_of(options_), limits}}, rank});
}

supervisor_outcome small_job_tables::begun_supervisor() {
  supervision::rules rules;
  rules.elastic.max_restarts = options_.restarts;
  supervisor_part part{supervisor_machine{the_job, options_.ranks, derive({}), rules}};
  supervision::begin begin;
  for (std::int32_t r = 0; r < options_.ranks; ++r) begin.incarnations.push_back(incarnation_of(r));
  const auto effects = part.receive(begin);
  const auto& out = supervisor_outcomes_[keep(std::move(part), effects)];
  for (std::size_t p = 0; p < symmetry_.size(); ++p) link(out, p, out);
  return out;
}

// --- parts ---------------------------------------------------------------------------------------

part_number small_job_tables::number_of(rank_part part) {
  const auto digest = part.digest();
  const auto [first, last] = ranks_by_digest_.equal_range(digest);
  for (auto it = first; it != last; ++it)
    if (ranks_[it->second] == part) return it->second;
  const auto number = static_cast<part_number>(ranks_.size());
  rank_facts facts;
  facts.stage = part.stage;
  facts.meets = part.meets() && options_.ranks > 1;
  facts.opening = part.opening;
  facts.attention = part.attention;
  facts.lane_ends = part.lane_ends;
  facts.gone = part.gone;
  facts.active = !part.gone && part.machine.phase() == ranks::phase::active;
  facts.rendezvous_kinds = part.rendezvous_kinds;
  facts.steps = part.steps();
  facts.applied = part.applied;
  facts.held = part.held;
  facts.generation = part.machine.mine().generation.value();
  facts.digest = digest;
  ranks_by_digest_.emplace(digest, number);
  ranks_.push_back(std::move(part));
  rank_facts_.push_back(facts);
  return number;
}

part_number small_job_tables::number_of(supervisor_part part) {
  const auto digest = part.digest();
  const auto [first, last] = supervisors_by_digest_.equal_range(digest);
  for (auto it = first; it != last; ++it)
    if (supervisors_[it->second] == part) return it->second;
  const auto number = static_cast<part_number>(supervisors_.size());
  supervisor_facts facts;
  facts.waits = part.waits();
  facts.ended = part.end.has_value();
  facts.generation = part.machine.generation().value();
  facts.committed = part.machine.committed();
  facts.deadline = number_of(supervision::event{deadline_passed{part.deadline}});
  facts.digest = digest;
  supervisors_by_digest_.emplace(digest, number);
  supervisors_.push_back(std::move(part));
  supervisor_facts_.push_back(facts);
  return number;
}

// --- messages and queues -------------------------------------------------------------------------

message_number small_job_tables::new_message(std::string text,
                                             std::map<std::string, message_number>& known) {
  const auto number = static_cast<message_number>(texts_.size());
  known.emplace(text, number);
  texts_.push_back(std::move(text));
  orders_.emplace_back();
  events_.emplace_back();
  commits_.push_back(false);
  downs_.push_back(false);
  return number;
}

message_number small_job_tables::number_of(const supervision::order& what) {
  auto text = text_of(what);
  if (const auto found = known_orders_.find(text); found != known_orders_.end())
    return found->second;
  const auto number = new_message(std::move(text), known_orders_);
  orders_[number] = what;
  return number;
}

message_number small_job_tables::number_of(const supervision::event& what) {
  auto text = text_of(what);
  if (const auto found = known_events_.find(text); found != known_events_.end())
    return found->second;
  const auto number = new_message(std::move(text), known_events_);
  events_[number] = what;
  commits_[number] = std::holds_alternative<step_done>(what) ||
                     std::holds_alternative<rank_finished>(what) ||
                     (options_.restarts > 0 && std::holds_alternative<prepared>(what));
  downs_[number] = std::holds_alternative<supervision::rank_down>(what);
  return number;
}

queue_number small_job_tables::number_of(std::vector<message_number> queue) {
  if (const auto found = known_queues_.find(queue); found != known_queues_.end())
    return found->second;
  const auto rest = number_of({queue.begin() + 1, queue.end()});
  const auto number = static_cast<queue_number>(queues_.size());
  known_queues_.emplace(queue, number);
  queues_.push_back(std::move(queue));
  rests_.push_back(rest);
  return number;
}

queue_number small_job_tables::longer(queue_number q, message_number last) {
  const auto key = key_of(q, last);
  if (const auto known = longer_.find(key); known != longer_.end()) return known->second;
  auto queue = queues_[q];
  queue.push_back(last);
  const auto number = number_of(std::move(queue));
  longer_.emplace(key, number);
  return number;
}

// --- what happens to a part ----------------------------------------------------------------------

std::uint32_t small_job_tables::keep(rank_part part, rank_effects effects) {
  rank_outcome out;
  for (const auto& m : effects.sent) out.sent.push_back(number_of(m));
  out.aborts = effects.aborts;
  out.broken = std::move(effects.broken);
  out.next = number_of(std::move(part));
  rank_outcomes_.push_back(std::move(out));
  return static_cast<std::uint32_t>(rank_outcomes_.size() - 1);
}

std::uint32_t small_job_tables::keep(supervisor_part part, const supervisor_effects& effects) {
  supervisor_outcome out;
  for (const auto& [rank, order] : effects.sent) out.sent.emplace_back(rank, number_of(order));
  for (const auto& [rank, order] : effects.sent)
    if (const auto* form = std::get_if<form_generation>(&order))
      out.formed = std::make_shared<const form_generation>(*form);
  for (const auto& [rank, incarnation] : effects.started)
    out.started.emplace_back(rank, fresh_rank(rank, incarnation));
  out.abandoned = effects.abandoned;
  out.committed = effects.committed.value_or(undefined);
  out.broken = effects.broken;
  out.next = number_of(std::move(part));
  supervisor_outcomes_.push_back(std::move(out));
  return static_cast<std::uint32_t>(supervisor_outcomes_.size() - 1);
}

std::uint32_t small_job_tables::move(part_number n, rank_move what) {
  const auto slot = static_cast<std::size_t>(what);
  if (const auto known = rank_facts_[n].after[slot]) return known;
  auto part = ranks_[n];
  rank_effects effects;
  switch (what) {
    case rank_move::opens: effects = part.communicator_open(); break;
    case rank_move::arrives: part.arrive(); break;
    case rank_move::passes: part.pass(); break;
    case rank_move::answers: effects = part.answer(options_.steps); break;
    case rank_move::attends: effects = part.answer_attention(); break;
    case rank_move::follows: effects = part.answer_thrown(closed_under_it()); break;
    case rank_move::peers_missing: effects = part.answer_thrown(peers_missing()); break;
    case rank_move::lane_ends: effects = part.lane_ended(); break;
    case rank_move::throws: effects = part.throws(); break;
    case rank_move::vanishes: effects = part.vanish("killed"); break;
  }
  const auto number = keep(std::move(part), std::move(effects));
  rank_facts_[n].after[slot] = number;
  return number;
}

std::uint32_t small_job_tables::order(part_number n, message_number order) {
  const auto key = key_of(n, order);
  if (const auto known = rank_receives_.find(key); known != rank_receives_.end())
    return known->second;
  auto part = ranks_[n];
  auto effects = part.receive(*orders_[order]);
  const auto number = keep(std::move(part), std::move(effects));
  rank_receives_.emplace(key, number);
  return number;
}

std::uint32_t small_job_tables::supervise(part_number n, message_number event) {
  const auto key = key_of(n, event);
  if (const auto known = supervisor_receives_.find(key); known != supervisor_receives_.end())
    return known->second;
  auto part = supervisors_[n];
  const auto effects = part.receive(*events_[event]);
  const auto number = keep(std::move(part), effects);
  supervisor_receives_.emplace(key, number);
  return number;
}

const rank_outcome& small_job_tables::after(part_number n, rank_move what) {
  if (const auto known = rank_facts_[n].after[static_cast<std::size_t>(what)])
    return rank_outcomes_[known];
  std::vector<std::uint32_t> outcomes;
  for (std::size_t p = 0; p < symmetry_.size(); ++p)
    outcomes.push_back(move(rank_image(n, p), what));
  link_all(outcomes, rank_outcomes_);
  return rank_outcomes_[outcomes.front()];
}

const rank_outcome& small_job_tables::rank_after(part_number n, message_number what) {
  if (const auto known = rank_receives_.find(key_of(n, what)); known != rank_receives_.end())
    return rank_outcomes_[known->second];
  std::vector<std::uint32_t> outcomes;
  for (std::size_t p = 0; p < symmetry_.size(); ++p)
    outcomes.push_back(order(rank_image(n, p), message_images_.at(what, p)));
  link_all(outcomes, rank_outcomes_);
  return rank_outcomes_[outcomes.front()];
}

const supervisor_outcome& small_job_tables::supervisor_after(part_number n, message_number event) {
  if (const auto known = supervisor_receives_.find(key_of(n, event));
      known != supervisor_receives_.end())
    return supervisor_outcomes_[known->second];
  std::vector<std::uint32_t> outcomes;
  for (std::size_t p = 0; p < symmetry_.size(); ++p)
    outcomes.push_back(supervise(supervisor_image(n, p), message_images_.at(event, p)));
  link_all(outcomes, supervisor_outcomes_);
  return supervisor_outcomes_[outcomes.front()];
}

// --- images --------------------------------------------------------------------------------------

// `outcomes` are those of an event and of its images, by permutation.
template <class Outcome>
void small_job_tables::link_all(const std::vector<std::uint32_t>& outcomes,
                                const std::vector<Outcome>& all) {
  for (std::size_t first = 0; first < outcomes.size(); ++first)
    for (std::size_t p = 0; p < outcomes.size(); ++p)
      link(all[outcomes[first]], p, all[outcomes[symmetry_.product(first, p)]]);
}

void small_job_tables::link(const rank_outcome& of, std::size_t permutation,
                            const rank_outcome& image) {
  if (of.sent.size() != image.sent.size() || of.aborts != image.aborts ||
      of.broken.empty() != image.broken.empty())
    throw not_symmetric{};
  for (std::size_t i = 0; i < of.sent.size(); ++i)
    link_message(of.sent[i], permutation, image.sent[i]);
  link_rank(of.next, permutation, image.next);
}

void small_job_tables::link(const supervisor_outcome& of, std::size_t permutation,
                            const supervisor_outcome& image) {
  const auto same = [](const supervisor_facts& a, const supervisor_facts& b) {
    return std::tie(a.waits, a.ended, a.generation, a.committed) ==
           std::tie(b.waits, b.ended, b.generation, b.committed);
  };
  const auto goes_to = [&](std::int32_t r) { return symmetry_.rank(permutation, r); };
  const auto require = [](bool holds) {
    if (!holds) throw not_symmetric{};
  };
  require(same(supervisor_facts_[of.next], supervisor_facts_[image.next]));
  supervisor_images_.link(of.next, permutation, image.next);
  link_message(supervisor_facts_[of.next].deadline, permutation,
               supervisor_facts_[image.next].deadline);
  require(of.committed == image.committed && of.broken.empty() == image.broken.empty());
  // The order matters only between the messages to one rank.
  require(of.sent.size() == image.sent.size());
  for (std::int32_t r = 0; r < options_.ranks; ++r) {
    auto there = image.sent.begin();
    for (const auto& [rank, message] : of.sent) {
      if (rank != r) continue;
      there = std::find_if(there, image.sent.end(),
                           [&](const auto& one) { return one.first == goes_to(r); });
      require(there != image.sent.end());
      link_message(message, permutation, (there++)->second);
    }
  }
  require(of.started.size() == image.started.size());
  for (const auto& [rank, part] : of.started) {
    const auto there = std::ranges::find(image.started, goes_to(rank),
                                         &std::pair<std::int32_t, part_number>::first);
    require(there != image.started.end());
    link_rank(part, permutation, there->second);
  }
  const auto permuted = [&](std::vector<std::int32_t> ranks) {
    std::ranges::transform(ranks, ranks.begin(), goes_to);
    std::ranges::sort(ranks);
    return ranks;
  };
  auto abandoned = image.abandoned;
  std::ranges::sort(abandoned);
  require(permuted(of.abandoned) == abandoned);
  require((of.formed == nullptr) == (image.formed == nullptr));
  if (of.formed)
    require(of.formed->base.number == image.formed->base.number &&
            permuted(of.formed->holders) == image.formed->holders);
}

void small_job_tables::link_rank(part_number of, std::size_t permutation, part_number image) {
  if (!rank_images_.link(of, permutation, image)) return;
  const auto facts = [](const rank_facts& f) {
    return std::tie(f.stage, f.meets, f.opening, f.attention, f.lane_ends, f.gone, f.active,
                    f.rendezvous_kinds, f.steps, f.applied, f.held, f.generation);
  };
  if (facts(rank_facts_[of]) != facts(rank_facts_[image])) throw not_symmetric{};
}

void small_job_tables::link_message(message_number of, std::size_t permutation,
                                    message_number image) {
  if (!message_images_.link(of, permutation, image)) return;
  if (commits_[of] != commits_[image] || downs_[of] != downs_[image]) throw not_symmetric{};
}

queue_number small_job_tables::queue_image(queue_number q, std::size_t permutation) {
  if (q == 0 || permutation == 0) return q;
  if (queue_images_.has(q, permutation)) return queue_images_.at(q, permutation);
  auto queue = queues_[q];
  for (auto& message : queue) message = message_images_.at(message, permutation);
  const auto image = number_of(std::move(queue));
  queue_images_.link(q, permutation, image);
  return image;
}

std::uint64_t small_job_tables::bytes() const {
  // Estimated size of the strings and vectors of a machine.
  constexpr std::uint64_t per_part = 2048;
  return ranks_.size() * (sizeof(rank_part) + sizeof(rank_facts) + per_part) +
         supervisors_.size() * (sizeof(supervisor_part) + sizeof(supervisor_facts) + per_part) +
         rank_outcomes_.size() * sizeof(rank_outcome) +
         supervisor_outcomes_.size() * sizeof(supervisor_outcome) + bytes_of(longer_) +
         bytes_of(rank_receives_) + bytes_of(supervisor_receives_) + rank_images_.bytes() +
         supervisor_images_.bytes() + message_images_.bytes() + queue_images_.bytes();
}

}  // namespace troupe::testing
