#include <fmt/format.h>

#include <fstream>
#include <string_view>

#include "troupe/accelerator.hpp"
#include "troupe/failure.hpp"
#include "troupe/module.hpp"

namespace troupe {

lazy_report::lazy_report(lazy_report_options how) : how_(std::move(how)) {
  if (how_.path.empty())
    throw user_error(errc::bad_configuration, "lazy_report: give the path of a file");
}

namespace {

void refuse_without_graphs(std::string_view accelerator) {
  if (accelerator == to_string(accelerator_kind::lazy)) return;
  throw user_error(errc::bad_configuration,
                   fmt::format("lazy_report: the accelerator {} has no graphs: use the accelerator "
                               "lazy, or leave the callback out",
                               accelerator));
}

}  // namespace

void lazy_report::configure(trainer_options& options) const {
  const std::string_view name = options.accelerator.name;
  if (name != to_string(accelerator_kind::automatic)) refuse_without_graphs(name);
}

void lazy_report::setup(module& m, stage) {
  refuse_without_graphs(m.strategy_in_use()->hardware().name());
}

void lazy_report::on_train_epoch_end(module& m, std::int64_t) {
  const auto counts = counts_of_lazy();
  std::int64_t fallbacks = 0;
  for (const auto& [name, calls] : counts.fallbacks) fallbacks += calls;
  const auto log = [&](const char* name, std::int64_t number) {
    m.log(name, static_cast<double>(number), {.reduce = log_reduction::max});
  };
  log("lazy/step_marks", counts.step_marks);
  log("lazy/graphs", counts.graphs);
  log("lazy/compilations", counts.compilations);
  log("lazy/fallbacks", fallbacks);
}

// The report looks at graphs that are being made, so it needs ranks that are not in a step.
void lazy_report::on_train_end(module& m) {
  m.barrier("lazy_report");
  if (m.rank() == 0 && !(std::ofstream{how_.path} << report_of_lazy() << std::flush))
    throw user_error(errc::bad_configuration,
                     fmt::format("lazy_report: cannot write {}: name a file in a folder that you "
                                 "may write to",
                                 how_.path));
  m.barrier("lazy_report");
}

}  // namespace troupe
