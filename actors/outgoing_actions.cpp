#include "actors/outgoing_actions.hpp"

#include <memory>

namespace troupe {

void outgoing_actions::make_room(std::size_t each) {
  constexpr std::size_t others = 3;
  list_.reserve(list_.size() + each * members_.size() + others);
}

void outgoing_actions::send(const member& to, supervision::order what) {
  list_.emplace_back(supervision::send{members_.rank_of(to), std::move(what)});
}

void outgoing_actions::abandon(const member& m) {
  list_.emplace_back(supervision::abandon{members_.rank_of(m)});
}

void outgoing_actions::start(const member& m) {
  list_.emplace_back(supervision::start_rank{members_.rank_of(m), m.incarnation, m.process});
}

void outgoing_actions::start_process(const placements& of, std::int32_t number) {
  const auto* place = of.find(number);
  list_.emplace_back(supervision::start_process{number, place && place->spare});
}

void outgoing_actions::arm(std::chrono::nanoseconds delay) {
  list_.emplace_back(supervision::arm{++deadline_, delay});
}

void outgoing_actions::announce(lifecycle_kind event, std::int32_t rank,
                                std::map<std::string, std::string> details) {
  list_.emplace_back(supervision::announce{
      {event, rank, members_.generation().value(), committed_, std::move(details)}});
}

void outgoing_actions::announce_failure(lifecycle_kind event, const failure& what) {
  list_.emplace_back(supervision::announce{{event,
                                            what.rank,
                                            members_.generation().value(),
                                            committed_,
                                            {{"what", render(what)}},
                                            std::make_shared<const failure>(what)}});
}

}  // namespace troupe
