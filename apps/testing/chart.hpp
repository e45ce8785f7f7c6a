// Message charts of a recorded run: one column per node, one line per event.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "apps/testing/simulation.hpp"

namespace troupe::testing {

struct chart_options {
  std::uint64_t until = UINT64_MAX;  ///< last event shown
  std::size_t lines = 40;            ///< number of lines before it
  std::size_t columns = 5;           ///< nodes with the latest activity
};

/// Text columns. An arrow stands on the line where its message was received; `--x` marks a message
/// that never arrived.
std::string text_chart(const std::vector<trace_note>& notes, const std::vector<std::string>& nodes,
                       const chart_options& options = {});
/// The first line of a Mermaid sequence diagram.
inline constexpr std::string_view mermaid_head = "sequenceDiagram";
/// The same as such a diagram.
std::string mermaid_chart(const std::vector<trace_note>& notes,
                          const std::vector<std::string>& nodes, const chart_options& options = {});

}  // namespace troupe::testing
