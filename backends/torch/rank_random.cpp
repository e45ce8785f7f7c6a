#include "backends/torch/rank_random.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <utility>

#include "backends/torch/accelerators/host_memory.hpp"
#include "troupe/detail/data_order.hpp"
#include "troupe/failure.hpp"

namespace troupe {

namespace {

constexpr auto scope_key = c10::DispatchKey::TESTING_ONLY_GenericMode;
constexpr std::string_view argument_name = "generator";

thread_local const at::Generator* of_this_thread = nullptr;

bool takes_generator(const c10::FunctionSchema& schema) {
  const auto& arguments = schema.arguments();
  return std::any_of(arguments.begin(), arguments.end(),
                     [](const c10::Argument& a) { return a.name() == argument_name; });
}

bool elsewhere(const c10::IValue& argument) {
  const auto host = host_device().type();
  if (argument.isTensor())
    return argument.toTensor().defined() && argument.toTensor().device().type() != host;
  return argument.isDevice() && argument.toDevice().type() != host;
}

void draw_from_the_rank(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const auto first = stack->end() - static_cast<std::ptrdiff_t>(arguments.size());
  const bool here = std::none_of(first, stack->end(), elsewhere);
  // Autograd's own threads, which run the backward of a device, have no rank.
  if (here && !of_this_thread)
    throw internal_error("a random operator of a rank ran on a thread without its generator");
  for (std::size_t i = 0; here && i < arguments.size(); ++i)
    if (auto& given = first[static_cast<std::ptrdiff_t>(i)];
        arguments[i].name() == argument_name && given.isNone())
      given = c10::IValue(*of_this_thread);
  const c10::impl::ExcludeDispatchKeyGuard below(scope_key);
  op.callBoxed(stack);
}

/// Random operators without a Generator argument, by the beginning of their names.
struct excuse {
  std::string_view prefix;
  std::string_view why;
};
constexpr std::string_view ends_in_one = "ends in operators that take a generator";
constexpr std::string_view other_engine = "never runs on the CPU";
constexpr std::string_view draws_nothing = "draws nothing on the CPU";
constexpr std::array excuses{
    excuse{"aten::rand", ends_in_one},
    excuse{"aten::dropout", ends_in_one},
    excuse{"aten::alpha_dropout", ends_in_one},
    excuse{"aten::feature_dropout", ends_in_one},
    excuse{"aten::feature_alpha_dropout", ends_in_one},
    excuse{"aten::native_dropout", ends_in_one},
    excuse{"aten::rnn_", ends_in_one},
    excuse{"aten::lstm.", ends_in_one},
    excuse{"aten::gru.", ends_in_one},
    excuse{"aten::scaled_dot_product_attention", ends_in_one},
    excuse{"aten::_scaled_dot_product_attention_math", ends_in_one},
    excuse{"aten::_scaled_dot_product_flash_attention_for_cpu", draws_nothing},
    excuse{"aten::_fused_sdp_choice", draws_nothing},
    excuse{"aten::_nested_tensor_softmax_with_shape", draws_nothing},
    excuse{"aten::_scaled_dot_product_", other_engine},
    excuse{"aten::_flash_attention_forward", other_engine},
    excuse{"aten::_efficient_attention_forward", other_engine},
    excuse{"aten::_triton_", other_engine},
    excuse{"aten::_fill_mem_eff_dropout_mask_", other_engine},
    excuse{"aten::_cudnn_", other_engine},
    excuse{"aten::miopen_", other_engine},
    excuse{"aten::_lstm_mps", other_engine},
    excuse{"rngprims::", other_engine},
    excuse{"inductor_prims::inductor_reserve_rng_state", draws_nothing},
};

bool excused(std::string_view name) {
  return std::any_of(excuses.begin(), excuses.end(),
                     [&](const excuse& e) { return name.starts_with(e.prefix); });
}

std::string full_name(const c10::OperatorName& name) {
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

}  // namespace

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, TESTING_ONLY_GenericMode, m) {
  auto& registry = c10::Dispatcher::singleton();
  for (const auto& name : registry.getAllOpNames()) {
    const auto op = registry.findSchema(name);
    if (op && name.getNamespace() == "aten" && takes_generator(op->schema()))
      m.impl(full_name(name).c_str(),
             torch::CppFunction::makeFromBoxedFunction<&draw_from_the_rank>());
  }
}

rank_random::rank_random(std::uint64_t seed)
    : seed_(seed), generator_(at::make_generator<at::CPUGeneratorImpl>(seed)) {}

namespace {

void restart(at::Generator& one, std::uint64_t seed) {
  if (!one.defined()) return;
  const std::lock_guard lock{one.mutex()};
  one.set_current_seed(seed);
}

}  // namespace

void rank_random::add_device(at::Generator on) {
  on_device_ = std::move(on);
  restart(on_device_, seed_);
}

void rank_random::reset_for_initialisation() {
  generator_.set_current_seed(seed_);
  restart(on_device_, seed_);
}

void rank_random::reset(const random_key& key) {
  auto stream = mix(seed_);
  for (const auto part : {key.epoch, key.batch, key.shard})
    stream = mix(stream + static_cast<std::uint64_t>(part));
  for (const auto letter : key.purpose) stream = mix(stream + static_cast<unsigned char>(letter));
  // LibTorch seeds its Mersenne twister with 32 bits; a full state keeps streams apart.
  at::mt19937_data_pod filled{};
  filled.seed_ = stream;
  filled.left_ = 1;
  filled.seeded_ = true;
  for (std::size_t i = 0; i < filled.state_.size(); i += 2) {
    const auto word = mix(stream + i);
    filled.state_[i] = static_cast<std::uint32_t>(word);
    filled.state_[i + 1] = static_cast<std::uint32_t>(word >> 32);
  }
  at::mt19937 engine;
  engine.set_data(filled);
  auto* cpu = static_cast<at::CPUGeneratorImpl*>(generator_.unsafeGetGeneratorImpl());
  cpu->set_engine(engine);
  cpu->set_next_float_normal_sample(std::nullopt);
  cpu->set_next_double_normal_sample(std::nullopt);
  restart(on_device_, stream);
}

random_scope::random_scope(rank_random& whose)
    : outer_(std::exchange(of_this_thread, &whose.generator())), on_(scope_key) {}

random_scope::~random_scope() { of_this_thread = outer_; }

std::vector<std::string> random_operators_out_of_reach() {
  std::vector<std::string> unknown;
  auto& registry = c10::Dispatcher::singleton();
  for (const auto& name : registry.getAllOpNames()) {
    const auto op = registry.findSchema(name);
    if (!op || op->hasKernelForDispatchKey(scope_key)) continue;
    const auto& arguments = op->schema().arguments();
    const auto random = op->hasTag(at::Tag::nondeterministic_seeded) ||
                        std::any_of(arguments.begin(), arguments.end(), [](const c10::Argument& a) {
                          return a.type()->str().find("Generator") != std::string::npos;
                        });
    if (random && !excused(full_name(name))) unknown.push_back(full_name(name));
  }
  std::sort(unknown.begin(), unknown.end());
  return unknown;
}

}  // namespace troupe
