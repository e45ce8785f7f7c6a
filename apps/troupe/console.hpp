// The program's output: results go to standard output, everything else to standard error.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::program {

/// Thread-safe: each line is one call of a writer, and calls for standard error are serialised.
///
/// Standard error may be a full pipe or a stopped terminal. Progress never waits for the
/// reader, nor does a line of a thread with a `no_wait`: it is dropped. Other lines wait; after
/// `end_soon` for a second at most, and not at all when one of them was dropped.
class console {
public:
  using writer = std::function<void(std::string_view)>;
  /// What standard error is.
  struct terminal {
    bool live = false;    ///< can write over a line
    bool colour = false;  ///< supports colours, and NO_COLOR is not set
    /// How wide it is now: a window may change its size at any time.
    std::function<std::size_t()> columns = [] { return std::size_t{80}; };
    /// How many lines it has now.
    std::function<std::size_t()> rows = [] { return std::size_t{24}; };
    /// Whether a line can be written now. Waits at most so long for that.
    std::function<bool(std::chrono::milliseconds)> has_room = [](auto) { return true; };
  };

  /// In a thread that must not wait, such as that of an event loop.
  class no_wait {
  public:
    no_wait() { ++handlers_; }
    ~no_wait() { --handlers_; }
    no_wait(const no_wait&) = delete;
    no_wait& operator=(const no_wait&) = delete;
  };
  /// The program was asked to end. For all consoles, until `end_soon(false)`.
  static void end_soon(bool wanted = true) { ends_soon_ = wanted; }

  console(writer out, writer err, terminal facts)
      : out_(std::move(out)), err_(std::move(err)), facts_(facts) {}

  const terminal& facts() const { return facts_; }
  /// Drops notes from now on.
  void be_quiet() { quiet_ = true; }
  bool quiet() const { return quiet_; }

  /// One result, followed by a line end.
  void result(std::string_view text);
  /// Results that have their own line ends.
  void results(std::string_view text) { out_(text); }
  void note(std::string_view text);
  /// A note that the call has asked for: printed also when other notes are dropped.
  void answer(std::string_view text);
  void error(std::string_view text);
  /// Printed also when notes are dropped, like an error, although the job continues.
  void warning(std::string_view text);
  /// For progress: a line with its end, or a live text, which begins with a carriage return and
  /// takes the place of the one before it. It may have several lines; the last one has no end. On a
  /// terminal that has become narrower since, an old line stands in several rows; all of them are
  /// cleared.
  void progress(std::string_view text);

private:
  enum class reader : std::uint8_t { awaited, not_awaited };

  std::unique_lock<std::timed_mutex> turn(reader is);
  bool wait_for_room(reader is);
  void say(std::string_view before, std::string_view text);
  std::size_t live_rows() const;
  std::string clear_live_text();

  writer out_;
  writer err_;
  terminal facts_;
  std::atomic<bool> quiet_{false};
  std::timed_mutex guard_;            // for standard error and live_
  std::vector<std::size_t> live_;     // characters of the lines of the live text that stands there
  std::atomic<bool> waits_{false};    // the thread that holds guard_ waits for the reader
  std::atomic<bool> dropped_{false};  // a line, after a wait; until there is room
  static inline thread_local int handlers_ = 0;  // of type no_wait
  static inline std::atomic<bool> ends_soon_{false};
};

}  // namespace troupe::program
