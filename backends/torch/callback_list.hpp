// The callbacks of one rank, as its learner calls them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <type_traits>
#include <vector>

#include "troupe/callback.hpp"
#include "troupe/value.hpp"

namespace troupe {

/// Copies of the states of all callbacks at a point of the run.
struct kept_callbacks {
  struct kept_state {
    std::string json;
    std::map<std::string, at::Tensor> tensors;
  };
  std::vector<kept_state> states;  ///< by callback
  bool any = false;                ///< some state is not empty
};

/// Used by the rank's lane only.
class callback_list {
public:
  /// Calls callback::configure of the callbacks that ranks get copies of. What one throws names it.
  static void configure(const std::vector<callback_factory>& factories, trainer_options& options);

  /// Throws user_error (bad_configuration) if a callback changes the options again.
  callback_list(const std::vector<callback_factory>& factories, const learner_context& about);

  bool empty() const { return all_.empty(); }
  /// Some callback may read gradients.
  bool reads_gradients() const;
  bool has_monitors() const;

  /// Calls the member of every callback, in order. What one throws names it.
  template <class... P>
  void call(module& m, void (callback::*member)(module&, P...),
            std::type_identity_t<P>... arguments) const {
    each([&](callback& one) { (one.*member)(m, arguments...); });
  }
  /// Calls on_train_epoch_end on the callbacks whose `monitors()` equals `monitors`.
  void end_epoch(module& m, std::int64_t epoch, bool monitors) const;

  /// Adds the entry `callbacks` to a checkpoint's state: by key, `json` and the names of `tensors`.
  /// Throws user_error if two states have the same key.
  void describe(nlohmann::json& state) const;
  /// Throws as describe does where two callbacks have a state under one key: before there is work
  /// to lose.
  void check_keys() const;
  /// The tensors of all states, as blobs named `callbacks/KEY/NAME`.
  std::vector<tensor_blob> tensors() const;
  /// Loads what describe and tensors gave. Callbacks without an entry keep what they have; entries
  /// without a callback are left out.
  void load(module& m, const nlohmann::json& state, const std::vector<tensor_blob>& blobs) const;

  void keep(kept_callbacks& into) const;
  void return_to(module& m, const kept_callbacks& from) const;

private:
  template <class Callback, class F>
  static void use(Callback& one, F what) {
    try {
      what(one);
    } catch (...) {
      rethrow_as_of(one);
    }
  }
  template <class F>
  void each(F what) const {
    for (const auto& one : all_) use(*one, what);
  }
  [[noreturn]] static void rethrow_as_of(const callback& who);

  std::vector<std::shared_ptr<callback>> all_;
};

}  // namespace troupe
