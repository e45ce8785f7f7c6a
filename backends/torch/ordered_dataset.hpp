// A dataset whose entries depend on their place in the epoch.
#pragma once

#include <cstdint>
#include <span>

#include "troupe/data.hpp"

namespace troupe {

/// Its entries have the order of the epoch already. So a loader reads them from first to last and
/// does not apply the ledger's permutation. Entry i is another sample in another epoch.
class ordered_dataset : public dataset {
public:
  /// Entries of epoch keys.epoch, by place. `shuffled`: a training whose data_loading::shuffle is
  /// true; else the samples are read from first to last.
  virtual value get_ordered(std::span<const std::int64_t> places, const sample_keys& keys,
                            bool shuffled) const = 0;
  /// The same unshuffled, as in evaluation.
  value get(std::span<const std::int64_t> places) const final {
    return get_ordered(places, {}, false);
  }
};

}  // namespace troupe
