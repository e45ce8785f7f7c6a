// Cases of the communicator port that are lists: for the adapters of this process, and for mpi.
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

/// A way for one rank to call something else than the others do, and what the error says of both.
/// The memory is ten numbers, which stay as they are.
struct disagreement_case {
  std::string name;
  std::function<work_ptr(communicator&, std::vector<float>&)> usual;
  std::function<work_ptr(communicator&, std::vector<float>&)> odd;  ///< of "kind": waits itself
  std::string usual_text;
  std::string odd_text;
};
std::vector<disagreement_case> disagreements();

/// Calls of all kinds that can not be done. `c` is rank 1 of three or more; nothing is submitted.
void check_refusals(communicator& c);

}  // namespace troupe::testing
