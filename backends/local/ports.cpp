#include "troupe/ports.hpp"

#include <fmt/format.h>
#include <sys/random.h>

#include <chrono>
#include <filesystem>

#include "backends/checkpoint/safetensors_io.hpp"
#include "backends/inproc/inproc.hpp"
#include "backends/local/file_storage.hpp"
#include "backends/mpi/mpi.hpp"
#include "backends/nccl/nccl.hpp"

#include "backends/entropy.hpp"
#include "backends/launcher.hpp"
#include "backends/local/thread_lane.hpp"
#include "backends/processes/rendezvous_kinds.hpp"

namespace troupe {

namespace {

class kernel_entropy : public entropy {
public:
  std::uint64_t draw() override {
    std::uint64_t drawn = 0;
    if (getrandom(&drawn, sizeof drawn, 0) != sizeof drawn)
      throw internal_error("the kernel gave no random numbers");
    return drawn;
  }
};

std::chrono::nanoseconds monotonic_now() {
  return std::chrono::steady_clock::now().time_since_epoch();
}

void refuse_null(const void* one, std::string_view what) {
  if (!one)
    throw user_error(
        errc::bad_usage,
        fmt::format("ports::use: the {} is null: give one, or leave the call out", what));
}

}  // namespace

void ports::use(std::shared_ptr<communicator_backend> one) {
  refuse_null(one.get(), "communicator_backend");
  for (auto& there : communicators)
    if (there->name() == one->name()) {
      there = std::move(one);
      return;
    }
  communicators.push_back(std::move(one));
}

void ports::use(std::shared_ptr<rendezvous_kind> one) {
  refuse_null(one.get(), "rendezvous_kind");
  for (auto& there : rendezvous_kinds)
    if (there->name() == one->name()) {
      there = std::move(one);
      return;
    }
  rendezvous_kinds.push_back(std::move(one));
}

ports local_ports() {
  ports world;
  const auto inproc = std::make_shared<inproc_backend>();
  world.communicators = {inproc, std::make_shared<nccl_backend>(inproc),
                         std::make_shared<mpi_backend>(std::nullopt)};
  world.lanes = std::make_shared<thread_lanes>(monotonic_now);

  world.files = std::make_shared<file_storage>(std::filesystem::current_path().string());
  world.checkpoints = safetensors_checkpoints({{"troupe", TROUPE_VERSION}});
  world.children = child_launcher();
  world.rendezvous_kinds = process_rendezvous_kinds();
  world.random = std::make_shared<kernel_entropy>();
  world.now = monotonic_now;
  return world;
}

}  // namespace troupe
