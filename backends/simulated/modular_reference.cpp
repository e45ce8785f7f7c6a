#include "backends/simulated/modular_arithmetic.hpp"
#include "troupe/detail/stable_hash.hpp"
#include "troupe/failure.hpp"

namespace troupe {

namespace modular {

constexpr std::uint64_t decay = 900'000'007;
constexpr std::uint64_t rate = prime - 1'000'003;  // negative: adding it descends

modular_state initial(std::size_t width, std::uint64_t seed) {
  modular_state state;
  state.momentum.assign(width, 0);
  for (std::size_t i = 0; i < width; ++i) state.weights.push_back(element(mix(mix(seed) + i)));
  return state;
}

std::uint64_t noise_key(std::uint64_t seed, std::int64_t epoch, std::int64_t batch,
                        std::int64_t rank) {
  return mix(mix(mix(seed) + static_cast<std::uint64_t>(epoch)) * 31 +
             static_cast<std::uint64_t>(batch) * 1'000'003 + static_cast<std::uint64_t>(rank));
}

void add_piece(std::vector<std::uint64_t>& gradient, const std::vector<std::uint64_t>& weights,
               const std::vector<std::int64_t>& order, piece of, std::uint64_t noise) {
  // A sample's gradient is slope * weight + offset + place * slope, so the sums of slopes and
  // offsets are enough.
  std::uint64_t slope = 0;
  std::uint64_t offset = 0;
  for (auto at = of.first; at < of.first + of.count; ++at) {
    const auto sample = static_cast<std::uint64_t>(order[static_cast<std::size_t>(at)]);
    slope = add(slope, element(mix(sample * 2)));
    offset = add(offset, element(mix(sample * 2 + 1) ^ noise));
  }
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    gradient[i] = add(gradient[i], add(multiply(slope, weights[i]), offset));
    offset = add(offset, slope);
  }
}

std::uint64_t statistic_of(const std::vector<std::int64_t>& order, piece of) {
  std::uint64_t sum = 0;
  for (auto at = of.first; at < of.first + of.count; ++at)
    sum = add(sum, static_cast<std::uint64_t>(order[static_cast<std::size_t>(at)]) + 1);
  return sum;
}

std::uint64_t next_statistic(std::uint64_t now, std::uint64_t of_step) {
  return add(multiply(now, decay), of_step);
}

void update(modular_state& state, const std::vector<std::uint64_t>& gradient, std::uint64_t samples,
            inverses& divisors) {
  const auto share = divisors.of(samples);
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    state.momentum[i] = add(multiply(state.momentum[i], decay), multiply(gradient[i], share));
    state.weights[i] = add(state.weights[i], multiply(rate, state.momentum[i]));
  }
}

}  // namespace modular

// A sum of products of each weight and its momentum, both shifted by their index, as in hashes of
// the NH family. Two states collide with probability 2^-61. It takes a third of the time of mixing
// the numbers one by one; every step of every rank is compared by it.
std::uint64_t modular_state::digest() const {
  if (momentum.size() != weights.size())
    throw internal_error("weights and momentum differ in width");
  std::uint64_t of_weight = 0;
  std::uint64_t of_momentum = 0;
  wide sum = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    of_weight += 0x9e3779b97f4a7c15;
    of_momentum += 0xd1b54a32d192ed03;
    sum += static_cast<wide>(weights[i] + of_weight) * (momentum[i] + of_momentum);
  }
  stable_hasher h;
  h.add(weights.size()).add(static_cast<std::uint64_t>(sum));
  return h.add(static_cast<std::uint64_t>(sum >> 64)).add(statistic).digest();
}

modular_reference::modular_reference(const modular_options& options, const trainer_options& run)
    : options_(options), run_(run) {
  states_.push_back(modular::initial(options.width, run.seed));
  digests_.push_back(states_.back().digest());
  consumed_.emplace_back(0, piece{});
}

const modular_state& modular_reference::after(std::int64_t step) {
  while (static_cast<std::int64_t>(states_.size()) <= step) advance();
  return states_[static_cast<std::size_t>(step)];
}

std::uint64_t modular_reference::digest_after(std::int64_t step) {
  after(step);
  return digests_[static_cast<std::size_t>(step)];
}

std::pair<std::int64_t, piece> modular_reference::consumed_by(std::int64_t step) {
  after(step);
  return consumed_[static_cast<std::size_t>(step)];
}

void modular_reference::advance() {
  const data_layout layout{options_.samples, run_.ranks, run_.batch_size};
  if (layout.batches() < 1) throw internal_error("a reference of a job without data");
  if (order_.empty()) order_ = permutation(run_.seed, epoch_, options_.samples);
  auto next = states_.back();
  std::vector<std::uint64_t> gradient(options_.width, 0);
  const auto first = batch_;
  std::uint64_t statistic = 0;
  for (std::int64_t k = 0; k < run_.accumulate_grad_batches && batch_ < layout.batches();
       ++k, ++batch_) {
    for (std::int32_t r = 0; r < run_.ranks; ++r)
      modular::add_piece(gradient, next.weights, order_, layout.of_rank(batch_, r),
                         modular::noise_key(run_.seed, epoch_, batch_, r));
    statistic = modular::add(statistic, modular::statistic_of(order_, layout.of_rank(batch_, 0)));
  }
  const auto consumed = layout.of_batches(first, batch_ - 1);
  modular::inverses divisors;
  modular::update(next, gradient, static_cast<std::uint64_t>(consumed.count), divisors);
  if (options_.buffers) next.statistic = modular::next_statistic(next.statistic, statistic);
  consumed_.emplace_back(epoch_, consumed);
  states_.push_back(std::move(next));
  digests_.push_back(states_.back().digest());
  if (batch_ < layout.batches()) return;
  batch_ = 0;
  ++epoch_;
  order_.clear();
}

}  // namespace troupe
