#include "backends/torch/torch_export.hpp"

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/ivalue.h>
#include <caffe2/serialize/inline_container.h>
#include <fmt/format.h>
#include <torch/csrc/jit/serialization/pickler.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>

#include "troupe/detail/tensor.hpp"
#include "troupe/failure.hpp"

namespace troupe {

namespace {

using json = nlohmann::json;
using c10::AnyType;
using c10::IValue;

/// Lightning checks a file's version before it reads anything else. This is the layout of 2.0.
constexpr const char* lightning_version = "2.0.0";

/// Untyped containers, because typed ones are pickled with names that weights_only refuses.
c10::impl::GenericDict text_keys() {
  return c10::impl::GenericDict{c10::StringType::get(), AnyType::get()};
}
c10::impl::GenericDict number_keys() {
  return c10::impl::GenericDict{c10::IntType::get(), AnyType::get()};
}
c10::impl::GenericList any_list() { return c10::impl::GenericList{AnyType::get()}; }

IValue option_of(const json& x) {
  if (x.is_boolean()) return x.get<bool>();
  if (x.is_number_integer()) return x.get<std::int64_t>();
  if (x.is_number()) return x.get<double>();
  if (x.is_string()) return x.get<std::string>();
  if (x.is_array()) {
    std::vector<IValue> items;
    for (const auto& item : x) items.push_back(option_of(item));
    return c10::ivalue::Tuple::create(std::move(items));
  }
  return {};
}

/// `optimizer_states` refers to parameters by a number over all groups; Troupe uses names.
class optimizer_exporter {
public:
  explicit optimizer_exporter(const std::vector<tensor_blob>& blobs) {
    for (const auto& blob : blobs)
      slots_[blob.name.substr(0, blob.name.rfind('.'))].push_back(&blob);
  }

  IValue export_one(std::size_t index, const json& saved) const {
    auto state = number_keys();
    auto groups = any_list();
    std::int64_t number = 0;
    for (const auto& group : saved.at("groups")) {
      auto entry = text_keys();
      for (const auto& [key, x] : group.items())
        if (key != "parameters") entry.insert(key, option_of(x));
      auto numbers = any_list();
      for (const auto& name : group.at("parameters")) {
        const auto key = fmt::format("{}.{}", index, name.get<std::string>());
        if (const auto found = slots_.find(key); found != slots_.end())
          state.insert(number, slots_of(found->second));
        numbers.push_back(number++);
      }
      entry.insert("params", numbers);
      groups.push_back(entry);
    }
    auto one = text_keys();
    one.insert("state", state);
    one.insert("param_groups", groups);
    return one;
  }

private:
  static IValue slots_of(const std::vector<const tensor_blob*>& blobs) {
    auto slots = text_keys();
    for (const auto* blob : blobs) {
      const auto slot = blob->name.substr(blob->name.rfind('.') + 1);
      const auto tensor = tensor_of(*blob);
      // PyTorch counts steps in floating point.
      slots.insert(slot, slot == "step" ? tensor.to(at::kFloat) : tensor);
    }
    return slots;
  }

  std::map<std::string, std::vector<const tensor_blob*>> slots_;
};

bool both_know(const json& saved) {
  static constexpr std::array known{"sgd", "adam", "adamw", "rmsprop", "adagrad"};
  return saved.is_object() && saved.contains("groups") &&
         std::find(known.begin(), known.end(), saved.value("type", "")) != known.end();
}

/// None if an optimizer is of a class that PyTorch does not have.
std::optional<c10::impl::GenericList> optimizers_of(const snapshot& what) {
  const auto state = what.state.empty() ? json::object() : json::parse(what.state);
  const auto saved = state.value("optimizers", json::array());
  auto all = any_list();
  const optimizer_exporter exporter{what.optimizer};
  for (std::size_t i = 0; i < saved.size(); ++i) {
    const auto& groups = saved[i].at("groups");
    if (!both_know(groups)) return std::nullopt;
    all.push_back(exporter.export_one(i, groups));
  }
  if (all.empty()) return std::nullopt;
  return all;
}

IValue checkpoint_of(const snapshot& what) {
  auto weights = text_keys();
  for (const auto& blob : what.model) weights.insert(blob.name, tensor_of(blob));
  auto whole = text_keys();
  whole.insert("epoch", what.loop.epoch);
  whole.insert("global_step", what.loop.steps);
  whole.insert("pytorch-lightning_version", lightning_version);
  whole.insert("state_dict", weights);
  if (const auto optimizers = optimizers_of(what)) {
    whole.insert("optimizer_states", *optimizers);
    whole.insert("lr_schedulers", any_list());
  }
  return whole;
}

}  // namespace

std::vector<std::shared_ptr<const std::vector<std::byte>>> encode_torch_checkpoint(
    const snapshot& what) {
  try {
    auto file = std::make_shared<std::vector<std::byte>>();
    caffe2::serialize::PyTorchStreamWriter archive{[&](const void* data, std::size_t size) {
      const auto* bytes = static_cast<const std::byte*>(data);
      file->insert(file->end(), bytes, bytes + size);
      return size;
    }};
    std::string pickled;
    torch::jit::Pickler pickler{
        [&](const char* data, std::size_t size) { pickled.append(data, size); },
        nullptr,
        nullptr,
        nullptr,
        nullptr,
        /*tag_aggregates=*/false};
    pickler.protocol();
    pickler.pushIValue(checkpoint_of(what));
    pickler.stop();
    archive.writeRecord("data.pkl", pickled.data(), pickled.size());
    archive.writeRecord("byteorder", "little", 6);
    for (std::size_t i = 0; i < pickler.tensorData().size(); ++i) {
      const auto tensor = torch::jit::getWriteableTensorData(pickler.tensorData()[i]);
      archive.writeRecord(fmt::format("data/{}", i), tensor.data(), tensor.sizeInBytes());
    }
    archive.writeEndOfFile();
    return {std::move(file)};
  } catch (const std::invalid_argument& error) {
    throw user_error(errc::checkpoint,
                     fmt::format("the checkpoint does not fit: {}", error.what()));
  } catch (const json::exception& error) {
    throw user_error(errc::checkpoint,
                     fmt::format("the checkpoint's state does not fit: {}", error.what()));
  }
}

}  // namespace troupe
