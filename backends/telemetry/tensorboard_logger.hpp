// The scalars and settings of a run for TensorBoard.
#pragma once

#include "backends/telemetry/event_file.hpp"
#include "troupe/observer.hpp"

#include <cstdint>
#include <map>
#include <string>
#include <variant>

namespace troupe {

/// Writes reduced values as scalars by name and step, and at its start the run's settings, as a
/// text (`config`) and as hyper-parameters. One write per observation.
class tensorboard_logger : public observer {
public:
  using setting = std::variant<bool, double, std::string>;
  struct facts {
    std::string config;                       ///< empty: no text
    std::map<std::string, setting> settings;  ///< empty: no hyper-parameters
    /// The step from which a run resumes. TensorBoard then drops values of later steps that earlier
    /// files of the folder have. `undefined`: the run is not a resumed one.
    std::int64_t resumed_at = undefined;
  };

  /// Makes a new file `events.out.tfevents...` in `folder`. Throws user_error (bad_configuration).
  tensorboard_logger(const std::string& folder, const facts& about, wall_clock now);
  /// Throws std::system_error if values are lost; later ones may still be written.
  void on(const observation& what) override;

private:
  void end_session(bool good);

  event_file file_;
  bool session_ = false;
};

}  // namespace troupe
