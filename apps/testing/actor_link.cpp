#include "apps/testing/actor_link.hpp"

#include <caf/make_message.hpp>
#include <caf/sec.hpp>
#include <utility>

namespace troupe::testing {

actor_link::actor_link(simulation& of, caf::strong_actor_ptr near, caf::strong_actor_ptr far,
                       simulated_stream::settings how)
    : simulation_(of),
      stream_(std::make_shared<simulated_stream>(of, of.where(near), of.where(far), how)),
      ends_{end{std::move(near), nullptr}, end{std::move(far), nullptr}} {
  for (const simulated_stream::side at : {0, 1}) open(at);
}

// Events and handles may outlive the link.
actor_link::~actor_link() {
  for (const simulated_stream::side at : {0, 1}) {
    stream_->vanish(at);
    link_handle::of(ends_[at].handle).forget();
  }
}

void actor_link::open(simulated_stream::side at) {
  ends_[at].handle =
      link_handle::make(simulation_.system(), [this, at](caf::mailbox_element_ptr m) {
        const auto number = m->mid;
        const bool numbered = number.is_request() || number.is_response();
        stream_message what;
        what.request = numbered ? number.integer_value() : 0;
        what.plain = m->move_content_to_message();
        stream_->send(at, std::move(what));
      });
  stream_->open(at,
                {[this, at](stream_message&& m) { receive(at, std::move(m)); },
                 [this, at](stream_end how) {
                   link_handle::of(ends_[at].handle)
                       .go_down(caf::make_error(caf::sec::remote_linking_failed, to_string(how)));
                 }});
  ends_[at].actor->get()->attach_functor(
      [weak = std::weak_ptr{stream_}, at, in = &simulation_,
       node = simulation_.where(ends_[at].actor)](const caf::error&) {
        const auto stream = weak.lock();
        if (stream && in->alive(node)) stream->leave(at, stream_end::closed);
      });
}

// The answer to a request returns through the same link.
void actor_link::receive(simulated_stream::side at, stream_message&& m) {
  const auto& to = ends_[at].actor;
  if (m.request == 0)
    to->enqueue(nullptr, caf::make_message_id(), std::move(m.plain), nullptr);
  else
    to->enqueue(ends_[at].handle, caf::make_message_id(m.request), std::move(m.plain), nullptr);
}

}  // namespace troupe::testing
