// Kineto's headers are here only.
#include <fmt/format.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <fstream>
#include <set>

#include "troupe/callbacks.hpp"
#include "troupe/failure.hpp"
#include "troupe/module.hpp"

namespace troupe {

torch_profiler::torch_profiler(torch_profiler_options how) : how_(std::move(how)) {
  if (how_.path.empty())
    throw user_error(errc::bad_configuration, "torch_profiler: give the path of a file");
  if (how_.wait < 0 || how_.active < 1)
    throw user_error(errc::bad_configuration,
                     fmt::format("torch_profiler: wait is {} and active is {}: give at least 0 and "
                                 "at least 1",
                                 how_.wait, how_.active));
}

void torch_profiler::on_train_batch_start(module& m, const batch&, std::int64_t) {
  if (m.rank() != 0 || seen_++ != how_.wait) return;
  using namespace torch::profiler::impl;
  const ProfilerConfig config{ProfilerState::KINETO};
  const std::set<ActivityType> activities{ActivityType::CPU};
  torch::autograd::profiler::prepareProfiler(config, activities);
  torch::autograd::profiler::enableProfiler(config, activities);
  records_ = true;
}

void torch_profiler::on_train_batch_end(module&, const step_output&, const batch&, std::int64_t) {
  if (records_ && seen_ == how_.wait + how_.active) finish();
}

void torch_profiler::on_train_end(module&) { finish(); }
void torch_profiler::on_exception(module&, std::string_view, std::string_view) { finish(); }

void torch_profiler::finish() {
  if (!std::exchange(records_, false)) return;
  const auto recorded = torch::autograd::profiler::disableProfiler();
  // LibTorch reports no error of the file.
  if (!std::ofstream{how_.path})
    throw user_error(errc::bad_configuration,
                     fmt::format("torch_profiler: cannot write {}: name a file in a folder that "
                                 "you may write to",
                                 how_.path));
  recorded->save(how_.path);
}

}  // namespace troupe
