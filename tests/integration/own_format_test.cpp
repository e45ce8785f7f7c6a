// Goal: a recipe can set its own checkpoint format in one place. A fit writes that format and a
// later fit resumes from it. A checkpoint folder that cannot be made ends a fit at its start. An
// error of a storage of the program's own ends neither in silence nor in a hang.
#include "backends/checkpoint/safetensors_io.hpp"
#include "tests/support/integer_learner.hpp"
#include "tests/support/temporary_folder.hpp"
#include "troupe/session.hpp"

#include <atomic>
#include <boost/asio/system_executor.hpp>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <mutex>
#include <thread>

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

// The library's files and an additional one, which is the commit point.
class own_format : public checkpoint_io {
public:
  std::vector<checkpoint_file> encode(const snapshot& what) const override {
    ++encoded;
    if (throws_int) throw 7;
    auto files = inner_->encode(what);
    files.push_back({commit_file(), {std::make_shared<const std::vector<std::byte>>(3)}});
    if (spoil) spoil(files);
    return files;
  }
  std::string commit_file() const override { return "own.commit"; }
  checkpoint_facts facts(std::span<const std::byte>, const std::string&) const override {
    return {};
  }
  snapshot read(const std::string& folder) const override {
    ++reads;
    if (!std::filesystem::exists(std::filesystem::path{folder} / commit_file()))
      throw user_error(errc::checkpoint, folder + " is not of this format");
    return inner_->read(folder);
  }
  // What it keeps elsewhere is gone with this; the folder itself is gone before.
  void remove(const std::string& folder) const override {
    if (std::filesystem::exists(folder)) throw std::logic_error("the folder is still there");
    if (at_remove) at_remove();
    const std::lock_guard lock{mutex};
    removed.push_back(std::filesystem::path{folder}.filename().string());
    if (fails) throw std::runtime_error("the archive is closed");
  }
  found_checkpoint latest(const std::string& run) const override { return inner_->latest(run); }

  mutable std::atomic<int> encoded{0};
  mutable std::atomic<int> reads{0};
  mutable std::mutex mutex;
  mutable std::vector<std::string> removed;
  bool fails = false;
  bool throws_int = false;
  std::function<void()> at_remove;
  std::function<void(std::vector<checkpoint_file>&)> spoil;

private:
  std::shared_ptr<const checkpoint_io> inner_ = safetensors_checkpoints({});
};

class own_recipe : public integer_recipe {
public:
  own_recipe(integer_options options, std::shared_ptr<const checkpoint_io> format)
      : integer_recipe(std::move(options)), format_(std::move(format)) {}
  std::shared_ptr<const checkpoint_io> checkpoints() const override { return format_; }

private:
  std::shared_ptr<const checkpoint_io> format_;
};

job saving_job(const std::filesystem::path& folder) {
  job what;
  what.options.ranks = 2;
  what.options.batch_size = 2;
  what.options.max_epochs = 1;
  what.run_folder = folder.string();
  return what;
}

// The machine's files, and what is done with an operation in place of the real one.
class own_storage : public storage {
public:
  using done_function = std::function<void(storage_result)>;
  explicit own_storage(std::function<void(done_function)> instead) : instead_(std::move(instead)) {}
  void submit(storage_op op, done_function done) override {
    if (instead_) return instead_(std::move(done));
    // A text counts only with an error.
    done = [done = std::move(done)](storage_result result) {
      if (!result.error) result.text = "written";
      done(std::move(result));
    };
    // The operation before this one is answered again, while this one waits.
    const auto again = std::exchange(last_, done);
    files_->submit(std::move(op), std::move(done));
    if (again) again({std::make_error_code(std::errc::io_error), "a second answer", {}, {}});
  }

private:
  std::function<void(done_function)> instead_;
  std::shared_ptr<storage> files_ = local_ports().files;
  done_function last_;
};

// The machine's files on a disk that is full when a file with this end of a path is written.
class full_once : public storage {
public:
  explicit full_once(std::string end) : end_(std::move(end)) {}
  void submit(storage_op op, std::function<void(storage_result)> done) override {
    const auto* writes = std::get_if<storage_ops::write>(&op);
    if (!writes || !writes->path.ends_with(end_) || std::exchange(was_full_, true))
      return files_->submit(std::move(op), std::move(done));
    done({std::make_error_code(std::errc::no_space_on_device), "the disk is full", {}, {}});
  }

private:
  const std::string end_;
  bool was_full_ = false;
  std::shared_ptr<storage> files_ = local_ports().files;
};

integer_options on_threads() {
  integer_options options;
  options.can_wait = true;
  return options;
}

// A job that saves in a folder of its own, and resumes, by the recipe's format.
struct own_run {
  temporary_folder folder;
  std::shared_ptr<own_format> format = std::make_shared<own_format>();
  job what = saving_job(folder.path() / "run");

  own_run() {
    auto options = on_threads();
    options.load = [format = format](const std::string& path) { return format->read(path); };
    what.recipe = std::make_shared<own_recipe>(options, format);
  }
};

}  // namespace

TEST_CASE("a fit writes a recipe's own checkpoint format and a later fit resumes from it",
          "[session]") {
  own_run own;
  auto& [folder, format, what] = own;
  session s{boost::asio::system_executor{}};
  const auto first = s.run(what);
  REQUIRE(first.ok());
  CHECK(format->encoded == 1);
  CHECK(std::filesystem::exists(std::filesystem::path{first.last_checkpoint} / "own.commit"));

  what.options.max_epochs = 2;
  what.resume = first.last_checkpoint;
  const auto second = s.run(what);
  REQUIRE(second.ok());
  CHECK(format->reads >= 2);  // once per rank
  CHECK(format->encoded == 2);
  CHECK(second.loop.steps == 2 * first.loop.steps);
  CHECK(std::filesystem::exists(std::filesystem::path{second.last_checkpoint} / "own.commit"));
}

TEST_CASE("files that a recipe's format cannot mean end the fit with an error that says why",
          "[session]") {
  using files = std::vector<checkpoint_file>;
  struct spoilt {
    std::function<void(files&)> how;
    std::string why;
  };
  const auto [how, why] = GENERATE(
      spoilt{{}, "threw int"}, spoilt{[](files& all) { all.clear(); }, "returned no file"},
      spoilt{[](files& all) { all[0].name.clear(); }, "a file named \"\""},
      spoilt{[](files& all) { all[0].name = "../outside"; }, "a file named \"../outside\""},
      spoilt{[](files& all) { all[0].name = all.back().name; }, "two files named"},
      spoilt{[](files& all) { all[0].chunks.push_back(nullptr); }, "a chunk that is null"},
      spoilt{[](files& all) { all.pop_back(); }, "its commit_file() is \"own.commit\""});
  const temporary_folder folder;
  session s{boost::asio::system_executor{}};
  const auto format = std::make_shared<own_format>();
  format->throws_int = !how;
  format->spoil = how;
  auto what = saving_job(folder.path() / "run");
  what.recipe = std::make_shared<own_recipe>(on_threads(), format);
  const auto end = s.run(what);
  REQUIRE_FALSE(end.ok());
  CHECK_THAT(end.failed_with->record.what, Catch::Contains(why));
  CHECK(end.failed_with->record.hook == "save_checkpoint");
  CHECK_FALSE(std::filesystem::exists(folder.path() / "run/checkpoints/latest"));
}

TEST_CASE("checkpoints that the policy does not keep: the recipe's format removes its own",
          "[session]") {
  own_run own;
  auto& [folder, format, what] = own;
  session s{boost::asio::system_executor{}};
  format->fails = GENERATE(false, true);
  what.options.checkpoint.keep_best = 0;
  const auto first = s.run(what);
  REQUIRE(first.ok());
  CHECK(format->removed.empty());

  what.options.max_epochs = 2;
  what.resume = first.last_checkpoint;
  const auto second = s.run(what);
  REQUIRE(second.ok());
  CHECK(format->removed == std::vector{checkpoint_folder_name(first.loop.steps)});
  REQUIRE(second.late.size() == (format->fails ? 1 : 0));
  if (format->fails)
    CHECK_THAT(second.late[0].what,
               Catch::Contains("the checkpoint IO has not removed it: the archive is closed"));
}

TEST_CASE("leftovers of a crash: the recipe's format removes its own", "[session]") {
  own_run own;
  auto& [folder, format, what] = own;
  session s{boost::asio::system_executor{}};
  const auto first = s.run(what);
  REQUIRE(first.ok());
  const auto checkpoints = folder.path() / "run" / "checkpoints";
  const auto whole = checkpoint_folder_name(first.loop.steps);
  // One is of a checkpoint that was written again, one is no checkpoint's.
  for (const auto* left : {".step-00000001.tmp", ".step-x.tmp"})
    std::filesystem::create_directories(checkpoints / left);
  std::filesystem::create_directories(checkpoints / ("." + whole + ".tmp"));
  format->fails = GENERATE(false, true);
  what.resume = first.last_checkpoint;
  const auto second = s.run(what);
  REQUIRE(second.ok());
  CHECK(format->removed == std::vector<std::string>{checkpoint_folder_name(1)});
  CHECK(std::filesystem::exists(checkpoints / whole));
  for (const auto& one : std::filesystem::directory_iterator{checkpoints})
    CHECK_THAT(one.path().filename().string(), !Catch::StartsWith(".step"));
  REQUIRE(second.late.size() == (format->fails ? 1 : 0));
  if (format->fails)
    CHECK_THAT(second.late[0].what, Catch::Contains("the checkpoint IO has not removed it"));
}

TEST_CASE("a write that fails: the recipe's format removes its own unless the step is there",
          "[session]") {
  own_run own;
  auto& [folder, format, what] = own;
  what.options.checkpoint.keep_last = 9;
  session plain{boost::asio::system_executor{}};
  const auto first = plain.run(what);
  REQUIRE(first.ok());
  const auto second = checkpoint_folder_name(2 * first.loop.steps);
  const auto third = checkpoint_folder_name(3 * first.loop.steps);
  what.resume = first.last_checkpoint;
  const auto full_at = [&](const std::string& step, std::int64_t epochs) {
    auto world = local_ports();
    world.files = std::make_shared<full_once>("." + step + ".tmp/own.commit");
    session s{boost::asio::system_executor{}, world};
    what.options.max_epochs = epochs;
    const auto end = s.run(what);
    REQUIRE_FALSE(end.ok());
    CHECK(end.failed_with->record.what == "the disk is full");
    return std::exchange(format->removed, {});
  };
  CHECK(full_at(second, 2) == std::vector{second});

  what.options.max_epochs = 3;
  REQUIRE(plain.run(what).ok());
  CHECK(full_at(second, 2).empty());  // that of the other branch is there
  CHECK(std::filesystem::exists(folder.path() / "run" / "checkpoints" / second));

  // The other branch's third one is removed before this one's third is written.
  std::promise<void> removed;
  format->at_remove = [&, once = std::make_shared<std::once_flag>()] {
    std::call_once(*once, [&] { removed.set_value(); });
  };
  auto options = on_threads();
  options.load = [format = format](const std::string& path) { return format->read(path); };
  options.at_hook = [&, after = removed.get_future().share()](const learner_context&,
                                                              const hook& h) {
    if (name(h) == "on_train_epoch_start" && where(h).epoch == 2)
      after.wait_for(std::chrono::seconds{20});
  };
  what.recipe = std::make_shared<own_recipe>(options, format);
  CHECK(full_at(third, 3) == std::vector{third, third});
}

TEST_CASE("a format that is slow to remove its own: the ranks train on meanwhile", "[session]") {
  const temporary_folder folder;
  session s{boost::asio::system_executor{}, local_ports(), {.threads = 1}};
  const auto format = std::make_shared<own_format>();
  std::promise<void> trained;
  std::atomic<bool> removes{false}, in_time{false};
  format->at_remove = [&, after = trained.get_future().share()] {
    if (!removes.exchange(true))
      in_time = after.wait_for(std::chrono::seconds{20}) == std::future_status::ready;
  };
  auto what = saving_job(folder.path() / "run");
  what.options.max_epochs = 1'000'000'000;
  what.options.checkpoint.every_n_steps = 1;
  what.options.checkpoint.keep_best = 0;
  job_handle running;
  what.started = [&](const job_handle& handle) { running = handle; };
  auto options = on_threads();
  std::atomic<int> steps{0};
  options.at_hook = [&](const learner_context& c, const hook& h) {
    if (c.rank != 0 || name(h) != "on_train_batch_start" || !removes) return;
    if (++steps != 3) return;
    trained.set_value();
    running.stop();
  };
  what.recipe = std::make_shared<own_recipe>(options, format);
  const auto end = s.run(what);
  CHECK(end.status == job_outcome::ending::stopped);
  CHECK(in_time);
}

TEST_CASE("a storage that throws or drops an operation: the fit fails with the reason",
          "[session]") {
  using done = own_storage::done_function;
  struct misdeed {
    std::function<void(done)> how;
    std::string why;
  };
  const auto [how, why] =
      GENERATE(misdeed{[](done) { throw std::runtime_error("the archive is closed"); },
                       "storage::submit: the archive is closed"},
               misdeed{[](done) { throw 7; }, "storage::submit: it threw int"},
               misdeed{[](done) {}, "dropped an operation without an answer"});
  const temporary_folder folder;
  auto world = local_ports();
  world.files = std::make_shared<own_storage>(how);
  session s{boost::asio::system_executor{}, world};
  auto what = saving_job(folder.path() / "run");
  what.recipe = std::make_shared<integer_recipe>(on_threads());
  const auto end = s.run(what);
  REQUIRE_FALSE(end.ok());
  CHECK(end.failed_with->record.code == errc::checkpoint);
  CHECK(end.failed_with->record.hook == "save_checkpoint");
  CHECK_THAT(end.failed_with->record.what, Catch::Contains(why));
}

TEST_CASE("a checkpointer that is left behind: its folder is free only when it has ended",
          "[session]") {
  using namespace std::chrono_literals;
  const temporary_folder folder;
  std::mutex guard;
  std::vector<own_storage::done_function> held;
  auto world = local_ports();
  world.files = std::make_shared<own_storage>([&](own_storage::done_function done) {
    const std::lock_guard lock{guard};
    held.push_back(std::move(done));
  });
  session s{boost::asio::system_executor{}, world};
  auto what = saving_job(folder.path() / "run");
  what.options.time.detect = 100ms;
  what.options.time.hook_limit = 2s;
  what.recipe = std::make_shared<integer_recipe>(on_threads());
  const auto why = [](const job_outcome& end) { return end.failed_with->record.what; };
  const auto first = s.run(what);
  REQUIRE_FALSE(first.ok());
  CHECK(first.survivors == std::vector<std::string>{"checkpointer: still writing"});
  const auto busy = Catch::Contains("another job of this session writes its checkpoints there");
  CHECK_THAT(why(s.run(what)), busy);
  const auto fail_operations = [&] {
    std::unique_lock lock{guard};
    const auto all = std::exchange(held, {});
    lock.unlock();
    for (const auto& done : all)
      done({std::make_error_code(std::errc::io_error), "the disk is gone", {}, {}});
  };
  auto next = what;
  next.resume = "latest";  // refused for another reason once the folder is free
  do fail_operations();
  while (busy.match(why(s.run(next))));
}

TEST_CASE("a storage's error without a text: the fit's failure names the path", "[session]") {
  const temporary_folder folder;
  auto world = local_ports();
  world.files = std::make_shared<own_storage>([](own_storage::done_function done) {
    std::thread{[done] {
      done({std::make_error_code(std::errc::no_space_on_device), {}, {}, {}});
    }}.join();
  });
  session s{boost::asio::system_executor{}, world};
  auto what = saving_job(folder.path() / "run");
  what.recipe = std::make_shared<integer_recipe>(on_threads());
  const auto end = s.run(what);
  REQUIRE_FALSE(end.ok());
  CHECK_THAT(end.failed_with->record.what, Catch::Contains((folder.path() / "run").string()) &&
                                               Catch::Contains("No space left on device"));
}

TEST_CASE(
    "a storage that answers twice, and with texts that are no errors: its first answers count",
    "[session]") {
  const temporary_folder folder;
  auto world = local_ports();
  world.files = std::make_shared<own_storage>(nullptr);
  session s{boost::asio::system_executor{}, world};
  auto what = saving_job(folder.path() / "run");
  what.recipe = std::make_shared<integer_recipe>(on_threads());
  const auto end = s.run(what);
  REQUIRE(end.ok());
  CHECK(end.late.empty());
  CHECK(step_of_checkpoint_folder(std::filesystem::path{end.last_checkpoint}.filename().string()) ==
        end.loop.steps);
}

TEST_CASE("a job that writes checkpoints without a storage is refused", "[session]") {
  const temporary_folder folder;
  auto world = local_ports();
  world.files = nullptr;
  session s{boost::asio::system_executor{}, world};
  auto what = saving_job(folder.path() / "run");
  what.recipe = std::make_shared<integer_recipe>(on_threads());
  const auto end = s.run(what);
  REQUIRE_FALSE(end.ok());
  CHECK_THAT(end.failed_with->record.what, Catch::Contains("ports::files is null"));
  what.options.checkpoint.enabled = false;
  CHECK(s.run(what).ok());
}

TEST_CASE("a fit fails at its start if its checkpoint folder cannot be made", "[session]") {
  const temporary_folder folder;
  std::ofstream{folder.path() / "run"} << "a file";
  session s{boost::asio::system_executor{}};
  auto what = saving_job(folder.path() / "run");
  what.recipe = std::make_shared<integer_recipe>(on_threads());
  const auto outcome = s.run(what);
  REQUIRE(outcome.failed_with);
  CHECK_FALSE(outcome.ok());
  CHECK(outcome.failed_with->record.code == errc::checkpoint);
  CHECK_THROWS_AS(outcome.rethrow(), user_error);
  CHECK(outcome.last_checkpoint.empty());
}
