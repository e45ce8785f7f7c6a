// Lists of hosts as launchers write them.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

/// The first host of Slurm's short form: `a[03-05,9],b` names a03. A number keeps its zeroes.
/// Nothing if the text is not such a list.
std::optional<std::string> first_host(std::string_view list);

/// Names between commas; empty ones are left out.
std::vector<std::string> split_hosts(std::string_view list);

}  // namespace troupe
