#include "apps/service/api.hpp"

#include "apps/http/prometheus_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <sstream>
#include <system_error>
#include <utility>

namespace service {

using nlohmann::json;
using nlohmann::ordered_json;
using troupe::program::http_answer;
using troupe::program::http_request;

namespace {

http_answer as_json_answer(const ordered_json& what, unsigned status = 200) {
  return {.status = status,
          .body = what.dump(-1, ' ', false, json::error_handler_t::replace) + "\n",
          .type = "application/json",
          .headers = {{"Cache-Control", "no-store"}}};
}

http_answer wrong(unsigned status, const std::string& why) {
  return as_json_answer({{"error", why}}, status);
}

// In a time that does not depend on where the texts differ.
bool equal_secret(std::string_view a, std::string_view b) {
  unsigned char difference = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < a.size() && !b.empty(); ++i)
    difference |= static_cast<unsigned char>(a[i] ^ b[i % b.size()]);
  return difference == 0;
}

// Of ASCII: names of hosts, and the scheme of an authorization.
std::string in_lower_case(std::string text) {
  for (auto& c : text)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return text;
}

// The value of a part `name=value` of the query; empty: there is none.
std::string in_query(const std::string& query, std::string_view name) {
  std::istringstream parts{query};
  for (std::string part; std::getline(parts, part, '&');)
    if (part.starts_with(name) && part.substr(name.size()).starts_with('='))
      return part.substr(name.size() + 1);
  return {};
}

std::string host_of(const std::string& header) {
  if (header.starts_with('[')) return header.substr(0, header.find(']') + 1);
  return header.substr(0, header.find(':'));
}

// Null: the client may go on.
std::optional<http_answer> refusal(const http_request& asked, const access& who) {
  if (!who.token.empty()) {
    const auto given = asked.header("Authorization");
    if (in_lower_case(given.substr(0, 7)) == "bearer " &&
        equal_secret(std::string_view{given}.substr(7), who.token))
      return std::nullopt;
    auto refused = wrong(401, "send the header Authorization: Bearer TOKEN");
    refused.headers.emplace_back("WWW-Authenticate", "Bearer");
    return refused;
  }
  const auto host = in_lower_case(host_of(asked.header("Host")));
  if (std::find(who.hosts.begin(), who.hosts.end(), host) == who.hosts.end())
    return wrong(403, "this name does not belong to the service: call it by its address");
  return std::nullopt;
}

json body_of(const http_request& asked) {
  auto type = in_lower_case(asked.header("Content-Type"));
  type.resize(std::min(type.find_first_of("; \t"), type.size()));
  if (type != "application/json")
    throw refused(415, "send JSON, with Content-Type: application/json");
  auto body = json::parse(asked.body.empty() ? "{}" : asked.body, nullptr, false);
  if (!body.is_object()) throw refused(400, "the body is no JSON object");
  return body;
}

// The events of one job for one client: what the journal has, and how the job stands.
class job_events final : public troupe::program::event_source {
public:
  job_events(kept_job_ptr of, std::string name, std::uint64_t after)
      : job_(std::move(of)), name_(std::move(name)), after_(after) {}

  std::string next() override {
    auto text = job_->events.events_after(after_);
    // The status goes with the last of the events known.
    if (after_ < job_->events.newest() || !status_is_due()) return text;
    auto status = as_json(name_, *job_).dump(-1, ' ', false, json::error_handler_t::replace);
    if (status != shown_) text += "event: job\ndata: " + status + "\n\n";
    shown_ = std::move(status);
    return text;
  }
  bool ended() const override {
    return !job_->running && !job_->waits && after_ >= job_->events.newest();
  }
  void wake_by(std::function<void()> wake) override {
    key_ = job_->events.watch(after_, std::move(wake));
  }

private:
  // The figures of a job that runs change with the time alone. So a status is due at once when the
  // state of the job has changed, and else a second after the one before.
  bool status_is_due() {
    auto state = state_of(*job_);
    if (job_->held) state += to_string(job_->held.status().state);
    const auto now = std::chrono::steady_clock::now();
    if (state == state_ && now - shown_at_ < std::chrono::seconds{1}) return false;
    state_ = std::move(state);
    shown_at_ = now;
    return true;
  }

  const kept_job_ptr job_;
  const std::string name_;
  std::uint64_t after_;
  std::string shown_, state_;
  std::chrono::steady_clock::time_point shown_at_;
  std::shared_ptr<void> key_;
};

http_answer events_of(const http_request& asked, const std::string& name, const kept_job_ptr& job) {
  auto from = in_query(asked.query, "after");
  if (from.empty()) from = asked.header("Last-Event-ID");
  std::uint64_t after = 0;
  const auto* end = from.data() + from.size();
  const auto [rest, error] = std::from_chars(from.data(), end, after);
  if (!from.empty() && (rest != end || error != std::errc{}))
    throw refused(400, "Last-Event-ID and after are the number of an event");
  return {.events = std::make_shared<job_events>(job, name, std::min(after, job->events.newest()))};
}

http_answer metrics_of(const job_book& jobs) {
  std::vector<troupe::program::labelled_status> all;
  for (const auto& [name, one] : jobs.all())
    if (one->held)
      all.push_back({"job=" + troupe::program::prometheus_label(name),
                     ordered_json::parse(to_json(one->held.status()))});
  auto text = troupe::program::prometheus_head("troupe_service_jobs", "gauge", "Jobs that run") +
              fmt::format("troupe_service_jobs {}\n", jobs.running());
  return {.body = text + troupe::program::prometheus_text(all),
          .type = "text/plain; version=0.0.4; charset=utf-8"};
}

http_answer list_of(const job_book& jobs) {
  auto all = ordered_json::array();
  for (const auto& [name, one] : jobs.all()) all.push_back(as_json(name, *one));
  return as_json_answer({{"jobs", all}});
}

http_answer start(const http_request& asked, job_book& jobs) {
  const auto body = body_of(asked);
  const auto& one = jobs.start(body);
  const auto name = one.folder.filename().string();
  auto made = as_json_answer(as_json(name, one), 201);
  made.headers.emplace_back("Location", "/v1/jobs/" + name);
  return made;
}

http_answer order(const http_request& asked, job_book& jobs, const std::string& name,
                  const std::string& what) {
  const auto body = body_of(asked);
  const std::string known = what == "stop" ? "now" : what == "scale" ? "ranks" : "";
  for (const auto& [field, value] : body.items())
    if (field != known)
      throw refused(400, fmt::format("{} takes no \"{}\"{}", what, field,
                                     known.empty() ? "" : ", but \"" + known + "\""));
  if (what == "stop") {
    const auto now = body.find("now");
    if (now != body.end() && !now->is_boolean())
      throw refused(400, "\"now\" of stop is no truth value: give true or false");
    jobs.stop(name, now != body.end() && now->get<bool>());
  } else if (what == "scale") {
    const auto ranks = body.find("ranks");
    const bool good =
        ranks != body.end() && ranks->is_number_integer() && *ranks >= 1 && *ranks <= 256;
    if (!good) throw refused(400, "\"ranks\" of scale is no number of ranks: give 1 to 256");
    jobs.scale(name, ranks->get<std::int32_t>());
  } else {
    jobs.resume(name);
  }
  return as_json_answer({{"ok", true}}, 202);
}

http_answer only(const char* methods) {
  auto refused = wrong(405, std::string{"this address takes "} + methods);
  refused.headers.emplace_back("Allow", methods);
  return refused;
}

// `/v1/jobs...`
http_answer job_route(const http_request& asked, job_book& jobs) {
  const bool reads = asked.method == "GET" || asked.method == "HEAD";
  const bool writes = asked.method == "POST";
  auto rest = asked.path.substr(std::string_view{"/v1/jobs"}.size());
  if (rest.empty() || rest == "/")
    return reads ? list_of(jobs) : writes ? start(asked, jobs) : only("GET, HEAD, POST");
  rest.erase(0, 1);
  const auto slash = rest.find('/');
  const auto name = rest.substr(0, slash);
  const auto what = slash == std::string::npos ? std::string{} : rest.substr(slash + 1);
  const auto one = jobs.find(name);
  if (what.empty() && asked.method == "DELETE") {
    jobs.remove(name);
    return as_json_answer({{"ok", true}});
  }
  if (what.empty()) return reads ? as_json_answer(as_json(name, *one)) : only("GET, HEAD, DELETE");
  if (what == "events") return asked.method == "GET" ? events_of(asked, name, one) : only("GET");
  if (what == "stop" || what == "scale" || what == "resume")
    return writes ? order(asked, jobs, name, what) : only("POST");
  return wrong(404, "a job has the addresses events, stop, scale and resume");
}

http_answer open_route(const http_request& asked, const job_book& jobs) {
  if (asked.method != "GET" && asked.method != "HEAD") return only("GET, HEAD");
  if (asked.path == "/healthz") return {.body = "ok\n"};
  if (asked.path == "/readyz")
    return jobs.draining() ? http_answer{.status = 503, .body = "shutting down\n"}
                           : http_answer{.body = "ready\n"};
  return {.body = std::string{live_page},
          .type = "text/html; charset=utf-8",
          .headers = {{"Cache-Control", "no-store"}, {"X-Frame-Options", "DENY"}}};
}

}  // namespace

http_answer answer(const http_request& asked, job_book& jobs, const access& who) {
  try {
    if (asked.path == "/" || asked.path == "/healthz" || asked.path == "/readyz")
      return open_route(asked, jobs);
    if (auto no = refusal(asked, who)) return *no;
    if (asked.path == "/metrics")
      return asked.method == "GET" || asked.method == "HEAD" ? metrics_of(jobs) : only("GET, HEAD");
    if (asked.path == "/v1/jobs" || asked.path.starts_with("/v1/jobs/"))
      return job_route(asked, jobs);
    return wrong(404, "there are /, /v1/jobs, /metrics, /healthz and /readyz");
  } catch (const refused& error) {
    return wrong(error.status, error.what());
  } catch (const troupe::user_error& error) {
    return wrong(400, error.what());
  }
}

}  // namespace service
