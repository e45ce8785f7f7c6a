#include "backends/collective/group_end.hpp"

#include <algorithm>
#include <utility>

namespace troupe::collectives {

bool outcome::end(work_result how) {
  if (claimed_.exchange(true, std::memory_order_acq_rel)) return false;
  const auto status = how.status;
  result_ = std::move(how);
  status_.store(status, std::memory_order_seq_cst);
  return true;
}

work_result outcome::result() const { return pending() ? work_result{} : result_; }

work_result end_reason::result_of(std::uint64_t of_channel, std::uint64_t of_number,
                                  std::int32_t rank, bool arrived) const {
  const bool this_one = channel == of_channel && number == of_number;
  if (this_one && status == work_status::mismatch) return {status, text, {}};
  const bool waited = arrived && std::find(missing.begin(), missing.end(), rank) == missing.end();
  if (this_one && status == work_status::timed_out && waited) return {status, text, missing};
  return {work_status::aborted, text, {}};
}

end_reason disagreed(std::uint64_t channel, std::uint64_t number, std::span<const called> calls) {
  return {work_status::mismatch, disagreement(number, calls), {}, channel, number};
}

end_reason late(std::uint64_t channel, std::uint64_t number, const collective_call& call,
                std::chrono::nanoseconds deadline, std::vector<std::int32_t> missing) {
  auto text = missed(call, deadline, missing);
  return {work_status::timed_out, std::move(text), std::move(missing), channel, number};
}

bool group_end::abort(std::string_view why) noexcept {
  end_reason reason;
  try {
    reason.text = why;
  } catch (...) {  // no memory for the text; the abort itself needs none
  }
  return abort(std::move(reason));
}

bool group_end::abort(end_reason why) noexcept {
  const std::lock_guard hold{mutex_};
  if (aborted()) return false;
  reason_ = std::move(why);
  aborted_.store(true, std::memory_order_seq_cst);
  return true;
}

std::string group_end::why() const {
  const std::lock_guard hold{mutex_};
  return reason_.text;
}

work_result group_end::result_of(std::uint64_t channel, std::uint64_t number, std::int32_t rank,
                                 bool arrived) const {
  const std::lock_guard hold{mutex_};
  return reason_.result_of(channel, number, rank, arrived);
}

}  // namespace troupe::collectives
