// What TensorBoard shows of a model: histograms of its parameters, and the graph of its loss.
#include <fmt/format.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/nn/module.h>

#include <array>
#include <cctype>
#include <filesystem>
#include <set>
#include <system_error>
#include <unordered_map>

#include "backends/telemetry/event_file.hpp"
#include "backends/torch/accelerators/host_memory.hpp"
#include "troupe/callbacks.hpp"
#include "troupe/failure.hpp"
#include "troupe/module.hpp"

namespace troupe {

namespace {

using torch::autograd::AccumulateGrad;
using torch::autograd::Node;

// --- histograms ----------------------------------------------------------------------------------

// A HistogramProto of numbers in host memory. Its buckets have equal widths.
proto_message histogram_of(const at::Tensor& values) {
  constexpr std::int64_t most = 30;  // what TensorBoard draws
  const auto numbers = values.to(at::kDouble);
  const auto low = numbers.min().item<double>(), high = numbers.max().item<double>();
  std::vector<double> limits{high}, counts{static_cast<double>(numbers.numel())};
  if (low < high) {
    const auto counted = at::histc(numbers, most, low, high).contiguous();
    counts.assign(counted.const_data_ptr<double>(), counted.const_data_ptr<double>() + most);
    limits.clear();
    for (std::int64_t i = 1; i <= most; ++i)
      limits.push_back(low + (high - low) * static_cast<double>(i) / static_cast<double>(most));
  }
  return proto_message{}
      .real64(1, low)
      .real64(2, high)
      .real64(3, static_cast<double>(numbers.numel()))
      .real64(4, numbers.sum().item<double>())
      .real64(5, numbers.square().sum().item<double>())
      .reals64(6, limits)
      .reals64(7, counts);
}

// --- the graph -----------------------------------------------------------------------------------

// `net.0.weight` is `net/0/weight`: TensorBoard groups nodes by the parts of their names.
std::string node_name(std::string text) {
  for (auto& c : text)
    if (c == '.')
      c = '/';
    else if (!std::isalnum(static_cast<unsigned char>(c)) && c != '_' && c != '/')
      c = '_';
  return text;
}

// `Addmm` of AddmmBackward0.
std::string operator_of(const Node& node) {
  const auto name = node.name();
  return name.substr(0, name.find("Backward"));
}

using shape = std::vector<std::int64_t>;

shape result_of(const Node& node) {
  shape sizes;
  if (node.num_inputs() == 0) return sizes;
  const auto& about = node.input_metadata(0);
  if (about.was_default_constructed() || about.is_nested_tensor()) return sizes;
  for (const auto& size : about.shape_as_dim_vector())
    sizes.push_back(size.maybe_as_int().value_or(-1));
  return sizes;
}

// A NodeDef of TensorFlow.
proto_message node_def(const std::string& name, const std::string& kind,
                       const std::vector<std::string>& inputs, const shape& result) {
  auto node = proto_message{}.text(1, name).text(2, kind);
  for (const auto& input : inputs) node.text(3, input);
  proto_message sizes;
  for (const auto size : result)
    sizes.message(2, proto_message{}.integer(1, static_cast<std::uint64_t>(size)));
  const auto value = proto_message{}.message(1, proto_message{}.message(7, sizes));
  return node.message(5, proto_message{}.text(1, "_output_shapes").message(2, value));
}

// Follows the loss back to what it was computed from. Nodes are written after their inputs.
class loss_graph {
public:
  explicit loss_graph(const module& m) {
    for (const auto& item : m.named_parameters())
      parameters_[item.value().unsafeGetTensorImpl()] = item.key();
  }

  // A GraphDef.
  proto_message of(const at::Tensor& loss) {
    const auto* root = loss.grad_fn().get();
    if (root) follow(*root);
    add("loss", "Loss", {root ? seen_.at(root).name : data()}, {});
    constexpr std::uint64_t producer = 22;  // as PyTorch writes it
    return graph_.message(4, proto_message{}.integer(1, producer));
  }

private:
  struct found {
    std::string name = {};
    std::string group = {};           // of the module whose parameters it uses; empty: none
    bool of_parameters_only = false;  // such as a transposed weight
  };
  static constexpr std::size_t nodes_max = 10'000;

  // Without recursion: a chain of operators may be long.
  void follow(const Node& root) {
    std::vector<std::pair<const Node*, bool>> open{{&root, false}};
    while (!open.empty()) {
      auto& [node, inputs_are_written] = open.back();
      if (inputs_are_written || visited_ == nodes_max) {
        const auto* ready = inputs_are_written ? node : nullptr;
        open.pop_back();
        if (ready && !seen_.contains(ready)) write(*ready);
        continue;
      }
      inputs_are_written = true;
      ++visited_;
      const auto* parent = node;  // `open` grows
      for (const auto& edge : parent->next_edges())
        if (edge.function && !seen_.contains(edge.function.get()))
          open.emplace_back(edge.function.get(), false);
    }
  }

  void write(const Node& node) {
    if (const auto* leaf = dynamic_cast<const AccumulateGrad*>(&node))
      return write_parameter(node, leaf->variable);
    found one{.of_parameters_only = true};
    std::vector<std::string> inputs;
    for (const auto& edge : node.next_edges()) {
      const auto input = seen_.find(edge.function.get());
      if (input == seen_.end()) {
        if (std::ranges::find(inputs, data()) == inputs.end()) inputs.push_back(data());
        one.of_parameters_only = false;
        continue;
      }
      inputs.push_back(input->second.name);
      if (!input->second.of_parameters_only) one.of_parameters_only = false;
      if (input->second.of_parameters_only && one.group.empty()) one.group = input->second.group;
    }
    const auto kind = operator_of(node);
    one.name = add(one.group + node_name(kind), kind, inputs, result_of(node));
    seen_.emplace(&node, std::move(one));
  }

  void write_parameter(const Node& node, const at::Tensor& variable) {
    const auto known = parameters_.find(variable.unsafeGetTensorImpl());
    const auto name = node_name(known == parameters_.end() ? "leaf" : known->second);
    const auto sizes = variable.sizes();
    seen_.emplace(&node, found{.name = add(name, "Parameter", {}, {sizes.begin(), sizes.end()}),
                               .group = name.substr(0, name.rfind('/') + 1),
                               .of_parameters_only = true});
  }

  const std::string& data() {
    if (data_.empty()) data_ = add("data", "Data", {}, {});
    return data_;
  }

  // Returns the name, which no other node has.
  std::string add(std::string name, const std::string& kind, const std::vector<std::string>& inputs,
                  const shape& result) {
    if (const auto before = names_[name]++; before > 0) name += fmt::format("_{}", before);
    graph_.message(1, node_def(name, kind, inputs, result));
    return name;
  }

  std::unordered_map<const c10::TensorImpl*, std::string> parameters_;
  std::unordered_map<const Node*, found> seen_;
  std::size_t visited_ = 0;
  std::map<std::string, int> names_;
  std::string data_;
  proto_message graph_;
};

}  // namespace

class tensorboard_model::writer {
public:
  explicit writer(const std::string& folder)
      : graph_(!is_new(folder)), file_(folder, [] { return std::chrono::system_clock::now(); }) {}

  bool has_begun() const { return begun_; }
  // A run that goes on: what follows replaces what earlier files have of later steps.
  void begin_at(std::int64_t step) {
    begun_ = true;
    if (step > 0) drop_errors([&] { file_.forget_from(step + 1); });
    written_ = step > 0 ? step : undefined;
  }
  bool has(std::int64_t step) const { return step <= written_; }
  void histograms(std::int64_t step, const proto_message& all) {
    written_ = step;
    drop_errors([&] { file_.write(file_.event(step).message(5, all)); });
  }
  bool wants_graph() const { return !graph_; }
  void graph(const proto_message& what) {
    graph_ = true;
    drop_errors([&] { file_.write(file_.event(0).message(4, what)); });
  }

private:
  static bool is_new(const std::string& folder) {
    std::error_code error;  // the file's own error says more
    return std::filesystem::create_directories(folder, error) ||
           std::filesystem::is_empty(folder, error);
  }
  template <class F>
  static void drop_errors(F&& f) {
    try {
      f();
    } catch (const std::system_error&) {  // a full disk costs values, never the run
    }
  }

  bool graph_;  // it is written, here or in an earlier file of the folder
  event_file file_;
  bool begun_ = false;
  std::int64_t written_ = undefined;  // the newest step with histograms
};

tensorboard_model::tensorboard_model(tensorboard_model_options how) : how_(std::move(how)) {
  if (how_.folder.empty())
    throw user_error(errc::bad_configuration, "tensorboard_model: give a folder for its file");
  if (how_.every_n_epochs < 1)
    throw user_error(errc::bad_configuration,
                     fmt::format("tensorboard_model: every_n_epochs is {}: give at least 1",
                                 how_.every_n_epochs));
}

void tensorboard_model::on_train_start(module& m) {
  if (m.rank() == 0 && !to_) to_ = std::make_shared<writer>(how_.folder);
}

// The step is known here: a rank that joins a running job does not know it in on_train_start.
void tensorboard_model::on_train_batch_start(module& m, const batch&, std::int64_t) {
  if (!to_ || to_->has_begun()) return;
  to_->begin_at(m.at().step);
  write_histograms(m);
}

void tensorboard_model::on_before_backward(module& m, const at::Tensor& loss) {
  if (to_ && to_->wants_graph()) to_->graph(loss_graph{m}.of(loss));
}

void tensorboard_model::on_train_epoch_end(module& m, std::int64_t epoch) {
  if (to_ && (epoch + 1) % how_.every_n_epochs == 0) write_histograms(m);
}

void tensorboard_model::on_train_end(module& m) {
  if (to_) write_histograms(m);
}

void tensorboard_model::write_histograms(module& m) {
  const auto step = std::max<std::int64_t>(m.at().step, 0);
  if (to_->has(step)) return;  // done again after a failure, with the same weights
  const at::NoGradGuard no_gradients;
  proto_message all;
  for (const auto& item : m.named_parameters()) {
    const auto values = to_host(item.value().detach()).flatten();
    const auto finite = values.masked_select(values.isfinite());
    if (finite.numel() == 0) continue;
    all.message(1, proto_message{}.text(1, node_name(item.key())).message(5, histogram_of(finite)));
  }
  to_->histograms(step, all);
}

}  // namespace troupe
