#include "troupe/session.hpp"

#include <boost/asio/any_completion_executor.hpp>
#include <boost/asio/associated_cancellation_slot.hpp>
#include <boost/asio/associated_executor.hpp>
#include <boost/asio/execution.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/prefer.hpp>
#include <deque>
#include <mutex>
#include <optional>

#include "actors/observation_queue.hpp"

namespace troupe {

namespace asio = boost::asio;

namespace {

// One wait: keeps work outstanding on its executors until it completes. Shared, because a handler
// of any type must not be copied.
struct waiter : std::enable_shared_from_this<waiter> {
  using handler_type = asio::any_completion_handler<event_stream::signature>;

  // Boost 1.81 assigns such handlers by endless recursion: they are moved into place once.
  waiter(std::uint64_t n, handler_type h, const asio::any_io_executor& of_stream)
      : number(n),
        executor(asio::prefer(asio::get_associated_executor(h, of_stream),
                              asio::execution::outstanding_work.tracked)),
        stream(asio::prefer(of_stream, asio::execution::outstanding_work.tracked)),
        handler(std::move(h)) {}

  const std::uint64_t number;
  asio::any_completion_executor executor;  // the handler's
  asio::any_io_executor stream;
  handler_type handler;

  // Through the stream's executor first, so that the handler never runs inside the initiating call
  // or on a thread of the actor system.
  void complete(observation_ptr what) {
    const auto hop = stream;
    asio::post(hop, [self = shared_from_this(), what = std::move(what)]() mutable {
      auto handler = std::move(self->handler);
      const auto work = std::move(self->stream);
      const auto executor = std::move(self->executor);
      self.reset();
      executor.execute([handler = std::move(handler), what = std::move(what)]() mutable {
        // Here, because slots are not thread-safe: their signal is emitted on this executor.
        asio::get_associated_cancellation_slot(handler).clear();
        std::move(handler)(std::move(what));
      });
    });
  }
};

}  // namespace

struct event_stream::channel : std::enable_shared_from_this<channel> {
  channel(asio::any_io_executor e, event_stream_options how)
      : executor(std::move(e)), waiting(how.hooks, how.limit) {}

  void push(observation_ptr what) {
    const std::lock_guard lock(guard);
    if (ended) return;
    waiting.push(std::move(what));
    serve();
  }

  void end() {
    const std::lock_guard lock(guard);
    ended = true;
    serve();
  }

  // Every wait that can be answered is.
  void serve() {
    while (!readers.empty()) {
      auto next = waiting.take_one();
      if (!next && !ended) return;
      auto reader = std::move(readers.front());
      readers.pop_front();
      reader->complete(std::move(next));
    }
  }

  void cancel(std::uint64_t number) {
    const std::lock_guard lock(guard);
    for (auto it = readers.begin(); it != readers.end(); ++it)
      if ((*it)->number == number) {
        auto reader = std::move(*it);
        readers.erase(it);
        return reader->complete(nullptr);
      }
  }

  const asio::any_io_executor executor;
  mutable std::mutex guard;
  observation_queue waiting;
  std::deque<std::shared_ptr<waiter>> readers;  // as many as the program has waits
  std::uint64_t numbers = 0;
  bool attached = false;
  bool ended = false;
};

namespace {

class into_stream final : public observer {
public:
  into_stream(bool hooks, std::function<void(observation_ptr)> push,
              std::function<void(std::uint64_t)> dropped)
      : hooks_(hooks), push_(std::move(push)), dropped_(std::move(dropped)) {}
  bool wants_hooks() const override { return hooks_; }
  void on(const observation& what) override { push_(std::make_shared<const observation>(what)); }
  void finish(std::uint64_t dropped) override { dropped_(dropped); }

private:
  bool hooks_;
  std::function<void(observation_ptr)> push_;
  std::function<void(std::uint64_t)> dropped_;
};

}  // namespace

event_stream::event_stream(asio::any_io_executor executor, event_stream_options how)
    : channel_(std::make_shared<channel>(std::move(executor), how)) {}

event_stream::~event_stream() { channel_->end(); }

void event_stream::wait(asio::any_completion_handler<signature> handler) {
  auto& c = *channel_;
  const std::lock_guard lock(c.guard);
  auto reader = std::make_shared<waiter>(++c.numbers, std::move(handler), c.executor);
  if (auto slot = asio::get_associated_cancellation_slot(reader->handler); slot.is_connected())
    slot.assign([weak = c.weak_from_this(), number = reader->number](asio::cancellation_type type) {
      const auto alive = weak.lock();
      if (alive && type != asio::cancellation_type::none) alive->cancel(number);
    });
  c.readers.push_back(std::move(reader));
  c.serve();
}

bool event_stream::ended() const {
  const std::lock_guard lock(channel_->guard);
  return channel_->ended && channel_->waiting.empty();
}

std::uint64_t event_stream::dropped() const { return channel_->waiting.dropped().all(); }

observer_factory event_stream::attach() {
  const std::lock_guard lock(channel_->guard);
  if (std::exchange(channel_->attached, true))
    throw user_error(errc::bad_usage,
                     "an event stream was given to two jobs: make one for each of them");
  return [c = channel_] {
    return std::make_unique<into_stream>(
        c->waiting.wants_hooks(), [c](observation_ptr what) { c->push(std::move(what)); },
        [c](std::uint64_t dropped) {
          c->waiting.add_dropped({dropped, 0});
        });
  };
}

bool event_stream::wants_hooks() const { return channel_->waiting.wants_hooks(); }

void event_stream::end() { channel_->end(); }

}  // namespace troupe
