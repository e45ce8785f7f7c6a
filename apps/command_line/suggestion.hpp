// Finds the name most similar to a misspelt one, for error messages. Pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::program {

/// Fewest single-character insertions, deletions, replacements and swaps of neighbours that make
/// `b` of `a`. O(|a| |b|).
std::size_t edit_distance(std::string_view a, std::string_view b);

/// The candidate that a user most likely meant by `word`: the closest by edit distance, the first
/// of equals. A dotted candidate also matches by its last part (`learning_rate` finds
/// `optimizer.learning_rate`). Nothing when the distance of each candidate exceeds half of the
/// longer word.
std::optional<std::string> suggestion(std::string_view word,
                                      const std::vector<std::string>& candidates);

/// `; did you mean "mlp"?`, or nothing.
std::string hint(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace troupe::program
