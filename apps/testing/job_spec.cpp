#include <algorithm>

#include "apps/testing/job_run.hpp"

namespace troupe::testing {

trainer_options job_spec::options() const {
  trainer_options o;
  o.ranks = ranks;
  o.batch_size = batch_size;
  o.accumulate_grad_batches = accumulate;
  o.max_epochs = -1;
  o.max_steps = steps;
  o.seed = seed;
  o.one_hook_per_run = one_hook_per_run;
  o.checkpoint.every_epoch = false;
  o.checkpoint.every_n_steps = checkpoint_every;
  o.checkpoint.keep_last = 2;
  o.checkpoint.keep_best = 0;
  o.time.detect = detect;
  o.time.hook_limit = hook_limit;
  o.elastic.max_restarts = max_restarts;
  o.elastic.on_loss = on_loss;
  o.elastic.min_ranks = min_ranks;
  o.elastic.spares = spares;
  return o;
}

trainer_options job_spec::asked() const {
  auto o = options();
  if (processes == 0) return o;
  o.elastic.shards = ranks;
  o.ranks = std::min(processes, ranks);
  return o;
}

modular_reference reference_of(const job_spec& what) {
  modular_options payload;
  payload.samples = what.samples;
  payload.width = what.width;
  payload.buffers = what.buffers;
  return {payload, what.options()};
}

}  // namespace troupe::testing
