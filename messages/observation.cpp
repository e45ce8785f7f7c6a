#include "troupe/observer.hpp"

namespace troupe {

std::string_view to_string(lifecycle_kind kind) {
  switch (kind) {
    case lifecycle_kind::generation_forming: return "generation_forming";
    case lifecycle_kind::rank_started: return "rank_started";
    case lifecycle_kind::generation_active: return "generation_active";
    case lifecycle_kind::checkpoint_written: return "checkpoint_written";
    case lifecycle_kind::checkpoint_failed: return "checkpoint_failed";
    case lifecycle_kind::stop_requested: return "stop_requested";
    case lifecycle_kind::stop_agreed: return "stop_agreed";
    case lifecycle_kind::rank_finished: return "rank_finished";
    case lifecycle_kind::rank_failed: return "rank_failed";
    case lifecycle_kind::generation_closing: return "generation_closing";
    case lifecycle_kind::generation_closed: return "generation_closed";
    case lifecycle_kind::trouble: return "trouble";
    case lifecycle_kind::teardown: return "teardown";
    case lifecycle_kind::survivor: return "survivor";
    case lifecycle_kind::job_ended: return "job_ended";
    case lifecycle_kind::observations_dropped: return "observations_dropped";
    case lifecycle_kind::events_lost: return "events_lost";
  }
  return "unknown";
}

std::string_view to_string(collective_kind kind) {
  switch (kind) {
    case collective_kind::all_reduce: return "all_reduce";
    case collective_kind::broadcast: return "broadcast";
    case collective_kind::all_gather: return "all_gather";
    case collective_kind::reduce_scatter: return "reduce_scatter";
    case collective_kind::barrier: return "barrier";
    case collective_kind::decide: return "decide";
    case collective_kind::work_together: return "work_together";
  }
  return "unknown";
}

}  // namespace troupe
