// What the ranks of one process share: the job's recipe, the program's ports, the communicators.
#pragma once

#include <memory>
#include <vector>

#include "messages/link.hpp"
#include "troupe/trainer.hpp"

namespace troupe {

/// The recipe is made once, for the first rank that lives here or for a warm-up. Communicators are
/// joined once, where all ranks get the same ports. A part that cannot be made fails each rank
/// where the rank would use it. Used by one thread at a time.
class process_parts {
public:
  /// Where ranks meet.
  struct place {
    ports world;
    std::shared_ptr<communicator_backend> communicators;
  };

  /// `by` outlives it.
  explicit process_parts(const rank_process_options& by) : by_(by) {}

  /// Makes the recipe, and loads what its ranks will need. The first rank reports what fails here.
  void warm(const warm_up& needs);
  /// The recipe; one that fails its ranks if it has another identity than the job's.
  recipe_ptr recipe(const rank_spec& brief);
  /// The ports and the communicators; `descriptors` are those of the process.
  place meet(const rank_spec& brief, const std::vector<int>& descriptors);

private:
  const rank_process_options& by_;
  recipe_ptr recipe_;
  std::shared_ptr<rendezvous_kind> joined_by_;
  std::shared_ptr<communicator_backend> communicators_;  // of it
};

}  // namespace troupe
