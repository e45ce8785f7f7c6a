#include "apps/troupe/console.hpp"

namespace troupe::program {

void console::result(std::string_view text) {
  std::string line{text};
  out_(line += '\n');
}

void console::note(std::string_view text) {
  if (!quiet_) say("", text);
}

void console::error(std::string_view text) {
  say(facts_.colour ? "\x1b[31merror:\x1b[0m " : "error: ", text);
}

// A live line may stand there: it is wiped, and comes back with the next progress.
void console::say(std::string_view before, std::string_view text) {
  std::string line{facts_.live ? "\r\x1b[K" : ""};
  line += before;
  line += text;
  err_(line += '\n');
}

}  // namespace troupe::program
