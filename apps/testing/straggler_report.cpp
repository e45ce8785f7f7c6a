#include "apps/testing/straggler_report.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace troupe::testing {

using std::chrono::nanoseconds;

straggler_report::straggler_report(std::uint32_t ranks_per_host)
    : ranks_per_host_(static_cast<std::int32_t>(std::max<std::uint32_t>(1, ranks_per_host))) {}

void straggler_report::met(std::span<const arrival> who) {
  if (who.empty()) return;
  const auto& last = *std::ranges::max_element(who, {}, &arrival::at);
  const auto host = last.rank / ranks_per_host_;
  auto others = nanoseconds::min();
  for (const auto& a : who)
    if (a.rank / ranks_per_host_ != host) others = std::max(others, a.at);
  if (others == nanoseconds::min()) return;  // one host: no other host waits
  const auto waited = last.at - std::max(others, charged_until_);
  charged_until_ = last.at;
  if (waited <= nanoseconds{0}) return;
  auto& share = shares_[host];
  share.waited += waited;
  ++share.last[last.rank];
}

void straggler_report::stepped(job_id job, std::int32_t rank, std::int64_t step, nanoseconds now) {
  if (rank != 0) return;
  if (job == job_ && step == last_step_ + 1) {
    took_ += now - last_at_;
    ++steps_;
  }
  job_ = job;
  last_step_ = step;
  last_at_ = now;
}

nanoseconds straggler_report::step_time() const {
  return steps_ == 0 ? nanoseconds{0} : took_ / steps_;
}

std::vector<straggler_report::straggler> straggler_report::blame() const {
  std::vector<straggler> all;
  for (const auto& [host, share] : shares_) {
    straggler one{.host = host, .waited = share.waited};
    std::uint64_t most = 0;
    for (const auto& [rank, times] : share.last) {
      one.times += times;
      if (times > most) one.rank = rank;
      most = std::max(most, times);
    }
    all.push_back(one);
  }
  std::ranges::stable_sort(all, std::greater{}, &straggler::waited);
  return all;
}

std::string straggler_report::text() const {
  if (steps_ == 0) return {};
  const auto ms = [](nanoseconds t) { return static_cast<double>(t.count()) / 1e6; };
  auto out = fmt::format("{} steps of {:.3f} ms each", steps_, ms(step_time()));
  const auto all = blame();
  if (all.empty()) return out;
  const auto& worst = all.front();
  const auto name = ranks_per_host_ == 1
                        ? fmt::format("rank {}", worst.rank)
                        : fmt::format("host {} (most often its rank {})", worst.host, worst.rank);
  return out + fmt::format("; {} kept the others waiting {} times, {:.3f} ms in total", name,
                           worst.times, ms(worst.waited));
}

}  // namespace troupe::testing
