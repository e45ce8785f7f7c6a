// A dataset whose entries depend on their place in the epoch.
#pragma once

#include <cstdint>
#include <span>

#include "troupe/data.hpp"

namespace troupe {

/// A loader reads its entries from first to last in every epoch: the ledger's permutation would
/// undo the order that they have. Entry i of two epochs is not the same.
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
