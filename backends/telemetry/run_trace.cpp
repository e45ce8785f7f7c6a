#include "backends/telemetry/run_trace.hpp"

#include "troupe/failure.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

namespace troupe {

namespace {

constexpr std::string_view trace_tail = "\n]}\n";
constexpr std::size_t trace_buffer_max = 64 * 1024;
constexpr std::chrono::seconds trace_interval{1};

// Processes of the trace: the job, then rank after rank.
constexpr std::int64_t job_process = 0;
std::int64_t process_of(std::int32_t rank) { return rank < 0 ? job_process : rank + 1; }

double microseconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double, std::micro>(time).count();
}

std::string defined_number(std::int64_t x) {
  return x == undefined ? std::string{"null"} : fmt::format("{}", x);
}

[[noreturn]] void refuse_trace(const std::string& path, const char* why) {
  throw user_error(
      errc::bad_configuration,
      fmt::format("cannot write the trace {}: {}; name a regular file in a folder that "
                  "you may write to",
                  path, why));
}

// Whether the ranks have left the hooks of a closure before its end.
bool leaves_closure(const hook& what) {
  return what.is<hooks::rewind, hooks::teardown, hooks::on_exception>();
}

class trace_observer : public observer {
public:
  explicit trace_observer(std::shared_ptr<run_trace> to) : to_(std::move(to)) {}
  bool wants_hooks() const override { return true; }
  void on(const observation& what) override {
    if (const auto* life = std::get_if<seen::lifecycle>(&what)) to_->add(*life);
    if (const auto* call = std::get_if<seen::collective>(&what)) to_->add(*call);
  }

private:
  std::shared_ptr<run_trace> to_;
};

}  // namespace

run_trace::run_trace(std::string path, clock now, std::uint64_t file_max)
    : path_(std::move(path)), now_(std::move(now)), file_max_(file_max) {
  struct stat about {};
  if (::stat(path_.c_str(), &about) == 0 && !S_ISREG(about.st_mode))
    refuse_trace(path_, "it is no regular file");
  file_.reset(::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!file_) refuse_trace(path_, std::strerror(errno));
  began_ = flushed_ = now_();
  write_out(head);
  if (!trouble_.empty()) refuse_trace(path_, trouble_.c_str());
  name_process(job_process, "job", "generations");
}

run_trace::~run_trace() { finish(); }

void run_trace::finish() {
  const std::lock_guard hold{guard_};
  const auto now = now_();
  end_all(now);
  flush(now);
}

void run_trace::enter(std::int32_t rank, const hook& what) {
  const std::lock_guard hold{guard_};
  if (full_ || !trouble_.empty()) return;
  const auto now = now_();
  know(rank);
  auto& lane = lanes_[rank];
  end(rank, lane.inner, now);
  // An optimizer may call its closure several times: it then begins with its first hook again.
  const auto here = name(what);
  if (lane.outer && lane.left == 0 && here == lane.first) lane.left = lane.closure;
  if (lane.left == 0 || leaves_closure(what)) {
    end(rank, lane.outer, now);
    lane.left = 0;
  }
  const slice begun{here, to_string(where(what).stage), where(what), now};
  if (const auto* step = what.get_if<hooks::optimizer_step>(); step && step->closure > 0) {
    lane.outer = begun;
    lane.left = lane.closure = step->closure;
    lane.first = {};
  } else {
    if (lane.outer && lane.left == lane.closure) lane.first = here;
    if (lane.left > 0) --lane.left;
    lane.inner = begun;
  }
  if (buffer_.size() >= trace_buffer_max || now - flushed_ >= trace_interval) flush(now);
}

void run_trace::know(std::int32_t rank) {
  if (!std::exchange(lanes_[rank].known, true))
    name_process(process_of(rank), fmt::format("rank {}", rank), "lane");
}

// The first row that is free again when the collective begins. Rows are threads, after the lane's.
std::size_t run_trace::row_of(std::int32_t rank, const seen::collective& what) {
  auto& rows = lanes_[rank].rows;
  const auto free = std::ranges::find_if(rows, [&](auto end) { return end <= what.began; });
  const auto row = static_cast<std::size_t>(free - rows.begin());
  if (free == rows.end()) {
    rows.emplace_back();
    add_text(
        fmt::format("{{\"ph\":\"M\",\"pid\":{},\"tid\":{},\"name\":\"thread_name\",\"args\":"
                    "{{\"name\":\"collectives\"}}}}",
                    process_of(rank), row + 2));
  }
  rows[row] = what.began + what.took;
  return row;
}

void run_trace::add(const seen::collective& what) {
  const std::lock_guard hold{guard_};
  if (full_ || !trouble_.empty()) return;
  const auto now = now_();
  know(what.rank);
  const called here{what.rank, row_of(what.rank, what), what.began, what.began + what.took};
  nlohmann::ordered_json args{{"bytes", what.bytes}, {"ranks", what.ranks}};
  if (!what.label.empty()) args["label"] = what.label;
  if (what.failed) args["failed"] = true;
  add_text(fmt::format(
      "{{\"ph\":\"X\",\"pid\":{},\"tid\":{},\"ts\":{:.3f},\"dur\":{:.3f},\"name\":\"{}\",\"cat\":"
      "\"collective\",\"args\":{}}}",
      process_of(what.rank), here.row + 2, microseconds(here.began - began_),
      microseconds(what.took), to_string(what.kind),
      args.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace)));
  if (what.number > 0 && what.ranks > 1 && !what.failed) {
    const auto at = open_.try_emplace({what.generation, what.number}).first;
    at->second.push_back(here);
    if (at->second.size() == static_cast<std::size_t>(what.ranks)) {
      draw_arrows(at->second);
      open_.erase(at);
    } else if (open_.size() > open_max) {
      open_.erase(open_.begin());
    }
  }
  if (buffer_.size() >= trace_buffer_max || now - flushed_ >= trace_interval) flush(now);
}

void run_trace::draw_arrows(const std::vector<called>& all) {
  const auto last = std::ranges::max_element(all, {}, &called::began);
  const auto point = [this](const char* kind, const called& at, std::chrono::nanoseconds when) {
    add_text(
        fmt::format("{{\"ph\":\"{}\",\"bp\":\"e\",\"id\":{},\"pid\":{},\"tid\":{},\"ts\":{:.3f},"
                    "\"name\":\"collective\",\"cat\":\"collective\"}}",
                    kind, arrows_, process_of(at.rank), at.row + 2, microseconds(when - began_)));
  };
  for (const auto& other : all) {
    if (other.rank == last->rank) continue;
    ++arrows_;
    point("s", *last, last->began);
    point("f", other, std::max(other.ended, last->began));
  }
}

void run_trace::end(std::int32_t rank, std::optional<slice>& open, std::chrono::nanoseconds now) {
  if (!open) return;
  const auto s = *std::exchange(open, std::nullopt);
  // Names of hooks and stages need no escaping.
  add_text(
      fmt::format("{{\"ph\":\"X\",\"pid\":{},\"tid\":1,\"ts\":{:.3f},\"dur\":{:.3f},\"name\":\"{}"
                  "\",\"cat\":\"{}"
                  "\",\"args\":{{\"epoch\":{},\"step\":{},\"batch\":{}}}}}",
                  process_of(rank), microseconds(s.since - began_), microseconds(now - s.since),
                  s.name, s.category, defined_number(s.at.epoch), defined_number(s.at.step),
                  defined_number(s.at.batch)));
}

void run_trace::end_all(std::chrono::nanoseconds now) {
  for (auto& [rank, lane] : lanes_) {
    end(rank, lane.inner, now);
    end(rank, lane.outer, now);
    lane.left = 0;
  }
}

void run_trace::add(const seen::lifecycle& what) {
  using nlohmann::ordered_json;
  const std::lock_guard hold{guard_};
  if (!trouble_.empty()) return;
  const auto now = now_();
  auto args = ordered_json::object();
  if (what.step != undefined) args["step"] = what.step;
  if (what.generation > 0) args["generation"] = what.generation;
  for (const auto& [name, value] : what.details) args[name] = value;
  const auto ts = microseconds(now - began_);
  const auto mark = [&](const char* kind, std::string_view name, std::int32_t rank) {
    const ordered_json event{{"ph", kind},  {"pid", process_of(rank)},   {"tid", 1},
                             {"ts", ts},    {"s", rank < 0 ? "g" : "p"}, {"name", name},
                             {"args", args}};
    add_text(event.dump(-1, ' ', false, ordered_json::error_handler_t::replace));
  };
  const bool forms = what.event == lifecycle_kind::generation_forming;
  const bool ends =
      what.event == lifecycle_kind::generation_closed || what.event == lifecycle_kind::job_ended;
  if (ends) end_all(now);
  if ((forms || ends) && std::exchange(generation_open_, false)) mark("E", "generation", -1);
  if (forms) {
    generation_open_ = true;
    mark("B", fmt::format("generation {}", what.generation), -1);
  } else {
    mark("i", to_string(what.event), what.rank);
  }
  flush(now);
}

std::string run_trace::trouble() const {
  const std::lock_guard hold{guard_};
  return trouble_;
}

void run_trace::name_process(std::int64_t process, const std::string& name, const char* thread) {
  const auto row = [&](const char* what, std::string_view value) {
    add_text(fmt::format("{{\"ph\":\"M\",\"pid\":{},\"tid\":1,\"name\":\"{}\",\"args\":{{{}}}}}",
                         process, what, value));
  };
  row("process_name", fmt::format("\"name\":\"{}\"", name));
  row("process_sort_index", fmt::format("\"sort_index\":{}", process));
  row("thread_name", fmt::format("\"name\":\"{}\"", thread));
}

void run_trace::add_text(std::string_view event) {
  buffer_ += std::exchange(first_, false) ? "\n" : ",\n";
  buffer_ += event;
}

void run_trace::flush(std::chrono::nanoseconds now) {
  flushed_ = now;
  if (!full_ && end_ + buffer_.size() > file_max_) {
    full_ = true;
    end_all(now);
    add_text(
        fmt::format("{{\"ph\":\"i\",\"pid\":{},\"tid\":1,\"ts\":{:.3f},\"s\":\"g\",\"name\":"
                    "\"trace is full: no more hooks\"}}",
                    job_process, microseconds(now - began_)));
  }
  if (buffer_.empty() || !trouble_.empty()) return;
  write_out(std::exchange(buffer_, {}));
}

// One write puts the text in the place of the tail, and a new tail after it.
void run_trace::write_out(std::string_view text) {
  std::string all{text};
  all += trace_tail;
  const auto at = static_cast<off_t>(end_);
  ssize_t written = 0;
  do written = ::pwrite(file_.get(), all.data(), all.size(), at);
  while (written < 0 && errno == EINTR);
  if (written == static_cast<ssize_t>(all.size())) {
    end_ += text.size();
    return;
  }
  trouble_ = written < 0 ? std::strerror(errno) : "no room for all of it";
  // The old tail had its place on the disk.
  std::ignore = ::ftruncate(file_.get(), at + static_cast<off_t>(trace_tail.size()));
  std::ignore = ::pwrite(file_.get(), trace_tail.data(), trace_tail.size(), at);
}

observer_factory lifecycle_of(std::shared_ptr<run_trace> trace) {
  return [trace = std::move(trace)] { return std::make_unique<trace_observer>(trace); };
}

}  // namespace troupe
