#include "backends/inproc/channel.hpp"

namespace troupe::inproc {

channel::channel(std::uint64_t id, std::vector<std::int32_t> ranks)
    : id(id),
      members(std::move(ranks)),
      spots(members.size()),
      own(members.size()),
      ring(ring_least) {
  for (auto& one : ring) one = std::make_shared<operation>(members.size());
}

bool channel::shares_core(std::size_t member) const noexcept {
  for (std::size_t i = 0; i < spots.size(); ++i)
    if (i != member && spots[member].core.same_core(spots[i].core)) return true;
  return false;
}

operation& channel::open_next() {
  if (reached - first + 1 >= ring.size()) {
    std::vector<std::shared_ptr<operation>> larger(2 * ring.size());
    for (std::size_t i = 0; i < ring.size(); ++i) {
      const auto number = reached - ring.size() + i;  // may wrap if there were fewer; harmless
      larger[number & (larger.size() - 1)] = ring[number & (ring.size() - 1)];
    }
    for (auto& one : larger)
      if (!one) one = std::make_shared<operation>(members.size());
    ring = std::move(larger);
  }
  auto& next = ring[reached & (ring.size() - 1)];
  if (!next->forgotten()) next = std::make_shared<operation>(members.size());
  next->renew(reached++);
  return *next;
}

}  // namespace troupe::inproc
