// Goal: `resume` accepts the documented values, a fit refuses the folder of another run, and an
// outcome names the right checkpoints. Real files, with integers as tensors.
#include <boost/asio/io_context.hpp>

#include "actors/job_check.hpp"
#include "tests/support/integer_learner.hpp"
#include "tests/support/temporary_folder.hpp"
#include "troupe/ports.hpp"
#include "troupe/session.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;
namespace fs = std::filesystem;

namespace {

class resume_place {
public:
  // Two epochs of 6 steps, with a checkpoint each.
  job fit(std::int64_t epochs, std::optional<std::string> resume = {}) const {
    integer_options options;
    options.can_wait = true;
    options.load = [io = world_.checkpoints](const std::string& path) { return io->read(path); };
    job what;
    what.options.ranks = 2;
    what.options.batch_size = 2;
    what.options.max_epochs = epochs;
    what.options.checkpoint.monitor = "train/loss";
    what.options.checkpoint.keep_last = 3;
    what.recipe = std::make_shared<integer_recipe>(std::move(options));
    what.run_folder = run();
    what.resume = std::move(resume);
    return what;
  }
  job_outcome operator()(job what) {
    boost::asio::io_context loop;
    session front{loop.get_executor(), world_};
    return front.run(std::move(what));
  }
  std::string run() const { return (folder_.path() / "run").string(); }
  std::string checkpoint(std::int64_t step) const {
    return (fs::path{run()} / "checkpoints" / checkpoint_folder_name(step)).string();
  }
  std::string latest() const {
    return fs::read_symlink(fs::path{run()} / "checkpoints" / "latest").string();
  }
  const ports& world() const { return world_; }

private:
  temporary_folder folder_;
  ports world_ = local_ports();
};

std::string why(const job_outcome& outcome) {
  return outcome.ok() ? "it is ok" : outcome.failed_with->record.what;
}

}  // namespace

TEST_CASE("resume accepts a checkpoint or a run folder or latest or the latest link", "[resume]") {
  resume_place at;
  const auto first = at(at.fit(1));
  REQUIRE(first.ok());
  const auto steps = first.loop.steps;
  const auto how = GENERATE(0, 1, 2, 3, 4);
  const std::vector<std::string> ways{at.checkpoint(steps), at.run(), "latest",
                                      at.run() + "/checkpoints/latest", at.run() + "/"};
  CAPTURE(ways[static_cast<std::size_t>(how)]);
  const auto second = at(at.fit(2, ways[static_cast<std::size_t>(how)]));
  if (!second.ok()) FAIL(why(second));
  CHECK(second.loop.steps == 2 * steps);
  CHECK(second.last_checkpoint == at.checkpoint(2 * steps));
}

TEST_CASE("an impossible resume value is refused with a remedy", "[resume]") {
  resume_place at;
  auto what = at.fit(1, "latest");
  what.run_folder.clear();
  CHECK_THAT(why(at(what)), Catch::Contains("set run_folder, or give a checkpoint's path"));
  CHECK_THAT(why(at(at.fit(1, ""))),
             Catch::Contains("resume is an empty path") && Catch::Contains("leave it unset"));
  auto test = at.fit(1, "");
  test.purpose = stage::test;
  CHECK_THAT(why(at(test)), Catch::Contains("resume is an empty path"));
  CHECK_THAT(why(at(at.fit(1, "latest"))),
             Catch::Contains("no checkpoint there: the run has written none"));
  CHECK_FALSE(fs::exists(at.run()));
}

TEST_CASE("a resume from a run whose checkpoints are damaged says what is wrong with them",
          "[resume]") {
  resume_place at;
  const auto first = at(at.fit(1));
  REQUIRE(first.ok());
  fs::resize_file(fs::path{first.last_checkpoint} / "model.safetensors", 9);
  CHECK_THAT(why(at(at.fit(2, at.run()))), Catch::Contains("no good checkpoint there") &&
                                               Catch::Contains(first.last_checkpoint) &&
                                               Catch::Contains("truncated"));
  fs::remove_all(fs::path{first.last_checkpoint}.parent_path());
  fs::create_directory(fs::path{first.last_checkpoint}.parent_path());
  CHECK_THAT(why(at(at.fit(2, at.run()))), Catch::Contains("the run has written none"));
}

TEST_CASE("a resume with nothing left to do names the existing checkpoints", "[resume]") {
  resume_place at;
  const auto first = at(at.fit(2));
  REQUIRE(first.ok());
  REQUIRE_FALSE(first.best_checkpoint.empty());
  const auto by = GENERATE(0, 1);
  const auto second = at(at.fit(2, by == 0 ? first.last_checkpoint : "latest"));
  if (!second.ok()) FAIL(why(second));
  CHECK(second.last_checkpoint == first.last_checkpoint);
  CHECK(second.best_checkpoint == first.best_checkpoint);
  CHECK(second.weights->loop.steps == first.loop.steps);
}

TEST_CASE("a failed fit names its last durable checkpoint", "[resume]") {
  resume_place at;
  REQUIRE(at(at.fit(1)).ok());
  auto what = at.fit(2, "latest");
  what.options.faults.push_back({.what = fault_drill::kind::raise, .rank = 1, .hook = "backward"});
  const auto failed = at(what);
  REQUIRE_FALSE(failed.ok());
  CHECK(failed.last_checkpoint == at.checkpoint(6));
  CHECK(failed.loop.steps == 6);
  CHECK(failed.loop.epoch == 1);
  CHECK(failed.loop.samples > 0);
}

TEST_CASE("an evaluation from a checkpoint has its own number of ranks, a fit has its shards",
          "[resume]") {
  resume_place at;
  const auto first = at(at.fit(1));
  REQUIRE(first.ok());
  for (const auto purpose : {stage::validate, stage::test, stage::predict}) {
    auto what = at.fit(1, first.last_checkpoint);
    what.purpose = purpose;
    what.options.ranks = 1;
    CHECK(at(what).shards == 1);
  }
  auto goes_on = at.fit(2, first.last_checkpoint);
  goes_on.options.ranks = 1;
  CHECK(shards_of(goes_on, at.world()) == 2);
  goes_on.options.communicator = communicator_kind::mpi;
  CHECK_THROWS_WITH(shards_of(goes_on, at.world()),
                    Catch::Contains("the checkpoint " + first.last_checkpoint + " has 2 shards") &&
                        Catch::Contains("set elastic.shards to 1"));
}

TEST_CASE("a strategy refuses the shards of a checkpoint: the error names the checkpoint",
          "[resume]") {
  struct of_one_rank : learner_recipe {
    std::unique_ptr<learner> make(const learner_context&) const override { return nullptr; }
    void check_options(const trainer_options& options) const override {
      if (options.ranks > 1) throw user_error(errc::bad_configuration, "one rank only");
    }
  };
  resume_place at;
  const auto first = at(at.fit(1));
  auto what = at.fit(2, first.last_checkpoint);
  what.options.ranks = 1;
  what.recipe = std::make_shared<of_one_rank>();
  CHECK_THROWS_WITH(settle_options(what, at.world()),
                    Catch::Contains("one rank only; the job has 2 shards as its checkpoint " +
                                    first.last_checkpoint));
  what.resume.reset();
  what.options.ranks = 2;
  CHECK_THROWS_WITH(settle_options(what, at.world()), "one rank only");
}

TEST_CASE("a fit that resumes a checkpoint of any name: each report begins with its step",
          "[resume]") {
  resume_place at;
  const auto first = at(at.fit(1));
  REQUIRE(first.ok());
  const auto best = at.run() + "-best";
  fs::copy(first.last_checkpoint, best, fs::copy_options::recursive);
  auto what = at.fit(2, best);
  what.run_folder += "-other";
  what.options.elastic.max_restarts = 1;
  std::int64_t step = undefined;
  what.started = [&](const job_handle& handle) {
    step = handle.status().step;
    handle.abort();
  };
  const auto aborted = at(what);
  REQUIRE_FALSE(aborted.ok());
  CHECK(step == 6);
  CHECK(aborted.failed_with->record.step == 6);
  REQUIRE(aborted.generations.size() == 1);
  CHECK(aborted.generations.front().base_step == 6);
  CHECK(aborted.loop.epoch == 1);
}

TEST_CASE("a new fit in a folder with checkpoints of another run is refused", "[resume]") {
  resume_place at;
  REQUIRE(at(at.fit(2)).ok());
  const auto latest = at.latest();
  const auto refused = at(at.fit(1));
  REQUIRE_FALSE(refused.ok());
  CHECK_THAT(why(refused),
             Catch::Contains("holds checkpoints of another run") && Catch::Contains(at.run()));
  CHECK(at.latest() == latest);
  auto silent = at.fit(1);  // it writes no checkpoint
  silent.options.checkpoint.enabled = false;
  CHECK(at(silent).ok());
}

TEST_CASE("a resume into a folder with checkpoints of another run is refused", "[resume]") {
  resume_place at;
  const auto first = at(at.fit(1));
  REQUIRE(first.ok());
  auto what = at.fit(2, first.last_checkpoint);
  what.run_folder += "-other";
  REQUIRE(at(what).ok());  // it begins this folder
  const auto refused = at(what);
  REQUIRE_FALSE(refused.ok());
  CHECK_THAT(why(refused), Catch::Contains("holds checkpoints of another run than resume") &&
                               Catch::Contains("choose a new run_folder"));
  what.resume = "latest";
  CHECK(at(what).ok());
  what = at.fit(2, first.last_checkpoint);
  what.run_folder += "/./";
  CHECK(at(what).ok());
}

TEST_CASE("a resume through a link, or by a relative path: old checkpoints are not kept",
          "[resume]") {
  resume_place at;
  auto first = at.fit(2);
  REQUIRE(at(first).ok());
  const auto link = at.run() + ".link";
  fs::create_directory_symlink(at.run(), link);
  fs::create_directory_symlink(at.checkpoint(12), link + "/step.link");
  const std::vector<std::string> names{
      link + "/checkpoints/" + checkpoint_folder_name(12), fs::relative(at.checkpoint(12)).string(),
      at.run() + "/./checkpoints/" + checkpoint_folder_name(12), link + "/step.link"};
  const auto& name = names[static_cast<std::size_t>(GENERATE(0, 1, 2, 3))];
  CAPTURE(name);
  auto second = at.fit(3, name);
  second.options.checkpoint.keep_last = 1;
  second.options.checkpoint.keep_best = 0;
  const auto ended = at(second);
  REQUIRE(ended.ok());
  CHECK(ended.last_checkpoint == at.checkpoint(18));
  CHECK_FALSE(fs::exists(at.checkpoint(6)));
  CHECK_FALSE(fs::exists(at.checkpoint(12)));
}

TEST_CASE("two jobs of a session do not write checkpoints into one folder", "[resume]") {
  resume_place at;
  boost::asio::io_context loop;
  session front{loop.get_executor(), at.world()};
  std::string refused, silent;
  const auto link = at.run() + ".link";
  fs::create_directories(at.run());
  fs::create_directory_symlink(at.run(), link);
  const std::vector<std::string> names{at.run() + "/.", link, link + "/../run.link/",
                                       fs::relative(at.run()).string(),
                                       fs::relative(link).string()};
  const auto& other_name = names[static_cast<std::size_t>(GENERATE(0, 1, 2, 3, 4))];
  CAPTURE(other_name);
  auto first = at.fit(1);
  first.started = [&](const job_handle&) {
    auto second = at.fit(1);
    second.run_folder = other_name;
    refused = why(front.run(second));
    second.options.checkpoint.enabled = false;
    silent = why(front.run(second));
  };
  CHECK(front.run(first).ok());
  CHECK_THAT(refused, Catch::Contains("another job of this session writes its checkpoints there"));
  CHECK(silent == "it is ok");
  CHECK(front.run(at.fit(2, "latest")).ok());  // the folder is free again
  CHECK_FALSE(front.run(at.fit(1)).ok());
  CHECK(front.run(at.fit(3, "latest")).ok());  // also after a job that did not start
}

TEST_CASE("jobs of two sessions do not write checkpoints into one folder", "[resume]") {
  resume_place at;
  boost::asio::io_context loop;
  session front{loop.get_executor(), at.world()};
  session other{loop.get_executor(), at.world()};
  std::string refused, silent;
  auto first = at.fit(1);
  first.started = [&](const job_handle&) {
    auto second = at.fit(1);
    refused = why(other.run(second));
    second.options.checkpoint.enabled = false;
    silent = why(other.run(second));
  };
  CHECK(front.run(first).ok());
  CHECK_THAT(refused,
             Catch::Contains("a job of another session or program writes its checkpoints"));
  CHECK(silent == "it is ok");
  CHECK(other.run(at.fit(2, "latest")).ok());  // the folder is free again
}

TEST_CASE("check_job reports the errors of a session and changes nothing", "[resume]") {
  resume_place at;
  CHECK_NOTHROW(check_job(at.fit(1), at.world()));
  auto what = at.fit(1);
  what.options.communicator = own_name{"pigeons"};
  CHECK_THROWS_WITH(check_job(what, at.world()), Catch::Contains("pigeons"));
  what = at.fit(1);
  what.options.accelerator = accelerator_kind::cuda;
  CHECK_THROWS_WITH(check_job(what, at.world()), Catch::Contains("use --accelerator cpu"));
  what = at.fit(1);
  what.options.ranks = 4097;
  CHECK_THROWS_WITH(check_job(what, at.world()), Catch::Contains("at most 4096"));
  CHECK_THAT(why(at(what)), Catch::Contains("at most 4096"));
  for (const auto within : {stage::start, stage::sanity}) {
    what = at.fit(1);
    what.purpose = within;
    CHECK_THROWS_WITH(check_job(what, at.world()), Catch::Contains("a stage within a job"));
  }
  what = at.fit(1, "latest");
  CHECK_THROWS_AS(check_job(what, at.world()), user_error);
  CHECK_FALSE(fs::exists(at.run()));
}

TEST_CASE("devices that are not there: the session starts no rank", "[resume]") {
  resume_place at;
  auto what = at.fit(1);
  what.options.devices.count = 2;
  const auto refused = at(what);
  REQUIRE_FALSE(refused.ok());
  CHECK_THAT(why(refused), Catch::Contains("devices = 2"));
  CHECK_FALSE(fs::exists(at.run()));
}
