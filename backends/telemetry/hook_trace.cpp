#include "backends/telemetry/hook_trace.hpp"

#include <fmt/format.h>

#include <system_error>

namespace troupe {

std::string trace_line(std::int32_t rank, const hook& what) {
  const auto& at = where(what);
  const auto number = [](std::int64_t x) {
    return x == undefined ? std::string{"null"} : fmt::format("{}", x);
  };
  // Names of stages and hooks need no escaping.
  return fmt::format(
      "{{\"rank\":{},\"stage\":\"{}\",\"hook\":\"{}\",\"epoch\":{},\"step\":{},\"batch\":{}}}\n",
      rank, to_string(at.stage), name(what), number(at.epoch), number(at.step), number(at.batch));
}

hook_trace::hook_trace(std::string path) : file_(std::move(path), line_file::start::fresh) {}

void hook_trace::operator()(std::int32_t rank, const hook& what) {
  const auto line = trace_line(rank, what);
  const std::lock_guard lock{mutex_};
  if (!trouble_.empty()) return;  // later lines would hide the gap
  try {
    file_.add(line);
  } catch (const std::system_error& error) {
    trouble_ = error.what();
  }
}

std::string hook_trace::trouble() const {
  const std::lock_guard lock{mutex_};
  return trouble_;
}

}  // namespace troupe
