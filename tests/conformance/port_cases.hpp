// Lists of communicator cases that the adapters of this process and the mpi adapter share.
#pragma once

#include "troupe/communicator.hpp"

#include <functional>
#include <string>
#include <vector>

namespace troupe::testing {

template <class T>
buffer view(std::vector<T>& values, dtype type) {
  return {values.data(), values.size(), type};
}
inline buffer floats(std::vector<float>& values) { return view(values, dtype::f32); }

/// One rank calls something else than the others: both calls, and the text of each in the error.
/// The memory holds ten numbers that must stay unchanged.
struct disagreement_case {
  std::string name;
  std::function<work_ptr(communicator&, std::vector<float>&)> usual;
  std::function<work_ptr(communicator&, std::vector<float>&)> odd;  ///< for "kind" it waits itself
  std::string usual_text;
  std::string odd_text;
};
std::vector<disagreement_case> disagreements();

/// Checks that impossible calls of every kind are refused. `c` is rank 1 of three or more ranks.
/// Nothing is submitted.
void check_refusals(communicator& c);

}  // namespace troupe::testing
