#include "actors/spawn.hpp"

namespace troupe::seam {

namespace {

caught recorded(failure_kind kind, std::string what) {
  return {make_failure(kind, std::move(what)), nullptr};
}

// An exception's text as it is, and other reasons as CAF writes them.
std::string text_of(const caf::error& why) {
  if (!why) return {};
  const auto& context = why.context();
  if (why == caf::sec::runtime_error && context.match_elements<std::string>())
    return context.get_as<std::string>(0);
  return to_string(why);
}

}  // namespace

void guard(caf::scheduled_actor& self, actor_error_handler trouble) {
  self.set_exception_handler([trouble, &self](std::exception_ptr& error) -> caf::error {
    caught what{describe(error), error};
    const auto text = what.record.what;
    if (trouble) trouble(self.ctrl(), std::move(what));
    return caf::make_error(caf::sec::runtime_error, text);
  });
  self.set_error_handler([trouble](caf::scheduled_actor* who, caf::error& error) {
    if (trouble) trouble(who->ctrl(), recorded(failure_kind::actor_error, to_string(error)));
  });
  self.set_default_handler([trouble](caf::scheduled_actor* who,
                                     caf::message_view& message) -> caf::result<caf::message> {
    if (trouble)
      trouble(who->ctrl(),
              recorded(failure_kind::unexpected_message, to_string(message.content())));
    return caf::sec::unexpected_message;
  });
  self.set_exit_handler([](caf::scheduled_actor* who, caf::exit_msg& message) {
    who->quit(std::move(message.reason));
  });
  self.set_down_handler([](caf::scheduled_actor*, caf::down_msg&) {});
}

thread_reference_release::~thread_reference_release() {
  caf::logger::set_current_actor_system(nullptr);
}

void on_down(caf::scheduled_actor& self,
             std::function<void(const caf::actor_addr&, std::string)> handler) {
  self.set_down_handler(
      [handler = std::move(handler)](caf::scheduled_actor*, caf::down_msg& message) {
        handler(message.source, text_of(message.reason));
      });
}

void quit(caf::scheduled_actor& self, const std::string& why) {
  self.quit(why.empty() ? caf::error{} : caf::make_error(caf::sec::runtime_error, why));
}

system_config::system_config(std::size_t threads) {
  if (threads == 0) {
    set("scheduler.policy", caf::atom("testing"));
  } else {
    add_message_types<caf::id_block::troupe>();
    // Sharing costs no idle CPU beside the training and answers lanes fastest (reference, caf.md
    // section 5).
    set("scheduler.policy", caf::atom("sharing"));
    set("scheduler.max-threads", threads);
  }
}

}  // namespace troupe::seam
