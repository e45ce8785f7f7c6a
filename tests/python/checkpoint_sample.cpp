// For safetensors_check.py: writes the sample checkpoint, or prints the tensors of a safetensors
// file.
#include "backends/checkpoint/checkpoint_folder.hpp"
#include "backends/checkpoint/safetensors.hpp"
#include "tests/support/sample_snapshot.hpp"

#include <fmt/format.h>

#include <iostream>
#include <string_view>

int main(int argc, char** argv) {
  using namespace troupe;
  if (argc != 3) return 2;
  if (std::string_view{argv[1]} == "write") {
    testing::write_files(argv[2], encode_checkpoint(testing::sample_snapshot(), {}));
    return 0;
  }
  for (const auto& tensor : read_safetensors(regular_file{argv[2]}).tensors) {
    std::cout << fmt::format("{} [{}] ", tensor.name, fmt::join(tensor.shape, ", "));
    for (const auto byte : *tensor.bytes)
      std::cout << fmt::format("{:02x}", std::to_integer<int>(byte));
    std::cout << "\n";
  }
}
