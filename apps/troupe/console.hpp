// Where the program's words go: results to standard output, everything else to standard error.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <string_view>

namespace troupe::program {

/// Thread-safe as far as its outputs are: each line is one call.
class console {
public:
  using writer = std::function<void(std::string_view)>;
  /// What standard error is.
  struct terminal {
    bool live = false;    ///< can write over a line
    bool colour = false;  ///< and NO_COLOR does not forbid it
    std::size_t columns = 80;
  };

  console(writer out, writer err, terminal facts)
      : out_(std::move(out)), err_(std::move(err)), facts_(facts) {}

  const terminal& facts() const { return facts_; }
  /// Drops notes from now on.
  void be_quiet() { quiet_ = true; }
  bool quiet() const { return quiet_; }

  /// One result, a line end behind it.
  void result(std::string_view text);
  /// Results that bring their own line ends.
  void results(std::string_view text) { out_(text); }
  void note(std::string_view text);
  void error(std::string_view text);
  /// As it is, for progress.
  void progress(std::string_view text) { err_(text); }

private:
  void say(std::string_view before, std::string_view text);

  writer out_;
  writer err_;
  terminal facts_;
  std::atomic<bool> quiet_{false};
};

}  // namespace troupe::program
