#include "backends/torch/callback_list.hpp"

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <c10/util/Type.h>
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <nlohmann/json.hpp>
#include <set>
#include <typeinfo>

#include "troupe/callbacks.hpp"
#include "troupe/communicator.hpp"
#include "troupe/detail/tensor.hpp"

namespace troupe {

std::string callback::state_key() const { return c10::demangle(typeid(*this).name()); }

namespace {

// A rank's callback that would decide otherwise than the job that has begun.
void refuse_changed_options(const callback& one, const trainer_options& of_job) {
  auto again = of_job;
  one.configure(again);
  again.ranks = of_job.ranks;  // the number of shards
  again.accelerator = of_job.accelerator;
  again.devices = of_job.devices;
  if (again == of_job) return;
  throw user_error(errc::bad_configuration,
                   "it changes the options of a job whose ranks have started: give the callback "
                   "itself, in each program of the job, and not a function that makes it; and let "
                   "configure change nothing when it is called again");
}

}  // namespace

callback_list::callback_list(const std::vector<callback_factory>& factories,
                             const learner_context& about) {
  for (std::size_t i = 0; i < factories.size(); ++i) {
    all_.push_back(factories[i](about));
    if (!all_.back())
      throw user_error(
          errc::job_failed,
          fmt::format("the factory of callback {} made no callback: return one per call", i));
  }
  each([&](const callback& one) { refuse_changed_options(one, about.options); });
  const auto averages = [](const auto& one) {
    return dynamic_cast<const weight_averaging*>(one.get()) != nullptr;
  };
  if (std::ranges::count_if(all_, averages) > 1)
    throw user_error(errc::bad_configuration,
                     "two callbacks average the weights, and each puts its average in the other's "
                     "place: give one of ema, swa and alike");
}

void callback_list::configure(const std::vector<callback_factory>& factories,
                              trainer_options& options) {
  for (const auto& make : factories)
    if (const auto* one = make.original())
      use(*one, [&](const callback& held) { held.configure(options); });
}

bool callback_list::reads_gradients() const {
  return std::ranges::any_of(all_, [](const auto& one) { return one->reads_gradients(); });
}

bool callback_list::has_monitors() const {
  return std::ranges::any_of(all_, [](const auto& one) { return one->monitors(); });
}

void callback_list::end_epoch(module& m, std::int64_t epoch, bool monitors) const {
  each([&](callback& one) {
    if (one.monitors() == monitors) one.on_train_epoch_end(m, epoch);
  });
}

// Called inside a catch block.
void callback_list::rethrow_as_of(const callback& who) {
  const auto named = [&](const char* what) {
    return fmt::format("callback {}: {}", who.state_key(), what);
  };
  try {
    throw;
  } catch (const generation_closed&) {
    throw;
  } catch (const collective_timeout&) {
    throw;
  } catch (const collective_mismatch&) {
    throw;
  } catch (const internal_error&) {
    throw;
  } catch (const user_error& error) {
    std::throw_with_nested(user_error(error.code(), named(error.what())));
  } catch (const c10::Error& error) {
    std::throw_with_nested(callback_failed(named(error.what_without_backtrace())));
  } catch (const std::exception& error) {
    std::throw_with_nested(callback_failed(named(error.what())));
  } catch (...) {
    std::throw_with_nested(callback_failed(named("not a std::exception")));
  }
}

// --- state ---------------------------------------------------------------------------------------

namespace {

std::string blob_name(const std::string& key, const std::string& tensor) {
  return fmt::format("callbacks/{}/{}", key, tensor);
}

}  // namespace

void callback_list::describe(nlohmann::json& state) const {
  auto entries = nlohmann::json::object();
  each([&](const callback& one) {
    const auto held = one.save_state();
    if (held.empty()) return;
    const auto key = one.state_key();
    if (entries.contains(key))
      throw user_error(errc::job_failed,
                       fmt::format("another callback has a state under the key {}, too: override "
                                   "state_key so that their keys differ",
                                   key));
    auto names = nlohmann::json::array();
    for (const auto& [name, tensor] : held.tensors) names.push_back(name);
    entries[key] = {{"json", held.json}, {"tensors", names}};
  });
  if (!entries.empty()) state["callbacks"] = std::move(entries);
}

void callback_list::check_keys() const {
  std::set<std::string> keys;
  bool twice = false;
  each([&](const callback& one) { twice = !keys.insert(one.state_key()).second || twice; });
  nlohmann::json unused;
  if (twice) describe(unused);  // one of them may have no state
}

std::vector<tensor_blob> callback_list::tensors() const {
  std::vector<tensor_blob> blobs;
  each([&](const callback& one) {
    const auto held = one.save_state();
    for (const auto& [name, tensor] : held.tensors)
      blobs.push_back(blob_of(blob_name(one.state_key(), name), tensor));
  });
  return blobs;
}

void callback_list::load(module& m, const nlohmann::json& state,
                         const std::vector<tensor_blob>& blobs) const {
  const auto entries = state.value("callbacks", nlohmann::json::object());
  std::map<std::string_view, const tensor_blob*> by_name;
  for (const auto& blob : blobs) by_name.emplace(blob.name, &blob);
  each([&](callback& one) {
    const auto key = one.state_key();
    const auto found = entries.find(key);
    if (found == entries.end()) return;
    callback_state held;
    held.json = found->at("json").get<std::string>();
    for (const auto& name : found->at("tensors").get<std::vector<std::string>>()) {
      const auto blob = by_name.find(blob_name(key, name));
      if (blob == by_name.end())
        throw user_error(errc::checkpoint, fmt::format("the checkpoint lacks the tensor {} of this "
                                                       "callback: take another checkpoint",
                                                       name));
      held.tensors.emplace(name, tensor_of(*blob->second));
    }
    one.load_state(m, held);
  });
}

void callback_list::keep(kept_callbacks& into) const {
  into.states.resize(all_.size());
  into.any = false;
  auto next = into.states.begin();
  each([&](const callback& one) {
    auto& kept = *next++;
    const auto held = one.save_state();
    into.any |= !held.empty();
    kept.json = held.json;
    std::erase_if(kept.tensors, [&](const auto& x) { return !held.tensors.contains(x.first); });
    for (const auto& [name, tensor] : held.tensors) {
      auto& copy = kept.tensors[name];
      // Always: what writes through a pointer or an accessor leaves a tensor's version as it was.
      const at::NoGradGuard no_grad;
      if (copy.defined() && copy.sizes() == tensor.sizes() && copy.dtype() == tensor.dtype() &&
          copy.device() == tensor.device())
        copy.copy_(tensor);
      else
        copy = tensor.detach().clone();
    }
  });
}

void callback_list::return_to(module& m, const kept_callbacks& from) const {
  auto next = from.states.begin();
  each([&](callback& one) {
    if (next == from.states.end()) return;
    const auto& kept = *next++;
    callback_state held{.json = kept.json};
    for (const auto& [name, copy] : kept.tensors) held.tensors.emplace(name, copy.clone());
    if (!held.empty() || !one.save_state().empty()) one.load_state(m, held);
  });
}

}  // namespace troupe
