// A build without MPI: the same backend, never usable.
#include "backends/mpi/mpi.hpp"

namespace troupe {

namespace mpi {
class engine {};
}  // namespace mpi

mpi_backend::mpi_backend(std::optional<placed_rank> place) : place_(place) {}
mpi_backend::~mpi_backend() = default;

std::string mpi_backend::unusable() const {
  return "this program was built without MPI: install libopenmpi-dev and build it again";
}

std::shared_ptr<mpi::engine> mpi_backend::running() {
  throw user_error(errc::device, "communicator \"mpi\" cannot be used here: " + unusable());
}

std::shared_ptr<communicator> mpi_backend::open(const group_description&) {
  running();
  return nullptr;
}

std::string mpi_backend::share(const std::string& text) {
  running();
  return text;
}

void mpi_backend::close() {}

}  // namespace troupe
