#include "apps/troupe/program.hpp"

#include "apps/troupe/build_facts.hpp"
#include "apps/troupe/cmd_fit.hpp"
#include "apps/troupe/cmd_init.hpp"
#include "apps/troupe/commands.hpp"
#include "apps/troupe/exit_code.hpp"
#include "apps/troupe/replaced.hpp"
#include "apps/troupe/setting_flags.hpp"
#include "troupe/failure.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <new>

namespace troupe::program {

namespace {

constexpr const char* examples = R"(Examples:
  troupe fit                                         Fashion-MNIST, two ranks, three epochs
  troupe fit --model cnn --max-epochs 5 --run-dir runs/cnn
  troupe fit --run-dir runs/cnn --resume latest      continues where it was stopped
  troupe fit --set model.hidden=[1024,1024] --batch-size 128
  troupe fit --fault throw@rank=1,hook=backward,step=9
  troupe tune learning-rate --model cnn
  troupe test --run-dir runs/cnn --json
  troupe report runs/cnn runs/mlp --output compared.html
  troupe watch runs/cnn                              until it ends
  troupe checkpoint export runs/cnn --format torch --output model.pt
  troupe config print --config job.toml              every setting, and where it came from

Every setting has a key in the TOML file and a TROUPE_ variable; the later wins: default, file,
variable, flag. Without --config the file is the run's own config.toml, where a run goes on or is
evaluated. Exit codes: 0 done, 1 the job failed, 2 bad usage, 3 bad configuration, a folder in use
or a port that is taken, 4 membership, 5 checkpoint, 6 device, 70 internal error, 75 stopped by a
request, 129, 130 and 143 stopped by SIGHUP, SIGINT and SIGTERM. Of those that were stopped,
result.json has the status "stopped" if the work is saved, "failed" if they ended at once.)";

schema schema_of(const catalog& learning) {
  schema_names names;
  const auto take = [](auto all, auto& built_in, auto& own) {
    for (auto& one : all)
      if (one.own)
        own.emplace_back(one.name, std::move(one.settings));
      else
        built_in.push_back(one.name);
  };
  take(learning.models(), names.models, names.own_models);
  take(learning.data_sets(), names.data_sets, names.own_data);
  for (const auto& device : learning.devices())
    if (device.built) names.accelerators.push_back(device.name);
  names.strategies = learning.strategies();
  names.precisions = learning.precisions();
  names.mpi = build_facts::with_mpi;
  names.nccl = build_facts::with_nccl;
  return make_schema(names);
}

command_line::texts texts_of(const context& around) {
  command_line::texts all{.name = around.name,
                          .about = around.about.empty()
                                       ? "Trains LibTorch models on actors, one per rank."
                                       : around.about,
                          .footer = replaced(examples, "  troupe ", "  " + around.name + ' '),
                          .version = fmt::format("troupe {}", build_facts::version)};
  if (around.name != "troupe")
    all.version = fmt::format("{} {}({})", around.name,
                              around.version.empty() ? "" : around.version + ' ', all.version);
  return all;
}

// One call: the flags, and what they chose.
class call {
public:
  explicit call(const context& around)
      : around_(around), schema_(schema_of(around.learning)), line_(texts_of(around)) {
    const auto top = line_.top().require_command();
    const choose chosen = [this](action what) { action_ = std::move(what); };
    add_fit(top, stage::train, "fit", "trains a model, then tests it", chosen);
    add_fit(top, stage::validate, "validate", "validates a run's or a checkpoint's weights",
            chosen);
    add_fit(top, stage::test, "test", "tests a run's or a checkpoint's weights", chosen);
    add_fit(top, stage::predict, "predict",
            "predicts with a run's weights, one line of JSON per sample", chosen);
    add_tune(top, schema_, around, chosen);
    add_write(top, around, chosen);
    add_checkpoint(top, schema_, around, chosen);
    add_data(top, around, chosen);
    add_config(top, schema_, around, chosen);
    add_models(top, around, chosen);
    add_doctor(top, around, chosen);
    add_bench(top, schema_, around, chosen);
    add_status(top, around, chosen);
    add_watch(top, around, chosen);
    add_report(top, around, chosen);
    add_control(top, around, chosen);
    add_simulate(top, around, chosen);
    add_init(top, around, chosen);
    add_completion(top, line_, schema_, around, chosen);
    add_manual(top, line_, around, chosen);
  }

  program_end run(std::vector<std::string> arguments) {
    if (const auto asked_for = line_.read(std::move(arguments))) {
      around_.screen.results(*asked_for);
      return {};
    }
    return action_();
  }

private:
  void add_fit(const command& top, stage purpose, const char* name, const char* about,
               const choose& chosen) {
    const auto added = top.add_command(name, about);
    auto flags = std::make_shared<setting_flags>();
    flags->add(added, schema_);
    added.on_chosen([=, this] {
      chosen([=, this] {
        if (const auto end = around_.take_rank()) return *end;
        auto what = flags->taken(around_.variables);
        return purpose == stage::train ? fit(schema_, std::move(what), around_)
                                       : evaluate(purpose, schema_, std::move(what), around_);
      });
    });
  }

  const context& around_;
  schema schema_;
  command_line line_;
  action action_;
};

}  // namespace

program_end run_program(std::vector<std::string> arguments, const context& around) {
  try {
    return call{around}.run(std::move(arguments));
  } catch (const user_error& error) {
    around.screen.error(error.what());
    return {static_cast<int>(error.code()), false};
  } catch (const std::filesystem::filesystem_error& error) {  // as of a name that is too long
    around.screen.error(fmt::format("{}: {}", error.path1().string(), error.code().message()));
    return {static_cast<int>(errc::bad_configuration), false};
  } catch (const std::bad_alloc&) {
    around.screen.error("not enough memory: give the call smaller sizes, or the machine more");
    return {exits::job_failed, false};
  } catch (const std::exception& error) {
    // Only a bug causes an exception here: a job's failure is a value.
    around.screen.error(fmt::format("internal error: {}", error.what()));
    return {exits::internal, false};
  }
}

}  // namespace troupe::program
