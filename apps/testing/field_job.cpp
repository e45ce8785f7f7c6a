#include "apps/testing/field_run.hpp"

namespace troupe::testing {

trainer_options field_job::options() const {
  trainer_options o;
  o.ranks = ranks;
  o.batch_size = batch_size;
  o.accumulate_grad_batches = accumulate;
  o.max_epochs = -1;
  o.max_steps = steps;
  o.seed = seed;
  o.fine = fine;
  o.checkpoint.every_epoch = false;
  o.checkpoint.every_n_steps = checkpoint_every;
  o.checkpoint.keep_last = 2;
  o.checkpoint.keep_best = 0;
  o.time.detect = detect;
  o.time.hook_limit = hook_limit;
  return o;
}

field_reference reference_of(const field_job& what) {
  field_options payload;
  payload.samples = what.samples;
  payload.width = what.width;
  payload.buffers = what.buffers;
  return {payload, what.options()};
}

const std::vector<std::string>& known_marks() {
  static const auto all = [] {
    std::vector<std::string> names{"resumed from a checkpoint",
                                   "began again from nothing",
                                   "a damaged checkpoint was passed over",
                                   "the program was killed",
                                   "stopped at a step",
                                   "an ending with survivors",
                                   "a rank of an ended run stepped"};
    for (const auto& m : product_marks) names.emplace_back(m.text);
    return names;
  }();
  return all;
}

void add_marks(std::map<std::string, std::uint64_t>& to, const run_report& of) {
  for (const auto& [name, count] : of.marks) to[name] += count;
  for (const auto& m : product_marks)
    if (const auto count = of.product[static_cast<std::size_t>(m.which)])
      to[std::string{m.text}] += count;
}

}  // namespace troupe::testing
