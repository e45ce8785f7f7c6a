// The identity of one process of a job's ranks.
#pragma once

#include "troupe/detail/ids.hpp"

#include <cstdint>

namespace troupe {

struct process_identity {
  job_id job;
  std::int32_t number = 0;     ///< counts the processes of the job; of a placed process its rank
  std::int32_t world = 1;      ///< the ranks of the job
  incarnation_id incarnation;  ///< distinct for each process
};

}  // namespace troupe
