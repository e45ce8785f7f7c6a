// A build without NCCL's headers: the same backend, never usable.
#include "backends/nccl/nccl.hpp"

namespace troupe {

struct nccl_backend::state {};

nccl_backend::nccl_backend(std::shared_ptr<communicator_backend>, nccl_options) {}
nccl_backend::~nccl_backend() = default;

std::string nccl_backend::unusable() const {
  return "this program was built without NCCL: `bash apps/setup.sh --nccl` brings its headers";
}

std::shared_ptr<communicator> nccl_backend::open(const group_description&) {
  throw user_error(errc::device, "communicator \"nccl\" cannot be used here: " + unusable());
}

}  // namespace troupe
