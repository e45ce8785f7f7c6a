// What a run's notes look like as a message chart: one column for each process, one line for each
// thing that happened.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/testing/simulation.hpp"

namespace troupe::testing {

struct chart_options {
  std::uint64_t until = UINT64_MAX;  ///< the last event that is shown
  std::size_t lines = 40;            ///< the last ones before it
  std::size_t columns = 5;           ///< places that were active last
};

/// Text columns. An arrow stands where its message was heard; `--x` never was.
std::string text_chart(const std::vector<trace_note>& notes, const std::vector<std::string>& nodes,
                       const chart_options& options = {});
/// The same as a Mermaid sequence diagram.
std::string mermaid_chart(const std::vector<trace_note>& notes,
                          const std::vector<std::string>& nodes, const chart_options& options = {});

}  // namespace troupe::testing
