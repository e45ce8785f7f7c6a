#include "backends/checkpoint/safetensors_io.hpp"

#include "backends/checkpoint/run_checkpoints.hpp"
#include "backends/checkpoint/safetensors_header.hpp"

namespace troupe {

namespace {

class safetensors_io final : public checkpoint_io {
public:
  explicit safetensors_io(std::map<std::string, std::string> versions)
      : versions_(std::move(versions)) {}

  std::vector<checkpoint_file> encode(const snapshot& what) const override {
    return encode_checkpoint(what, versions_);
  }
  std::string obstacle(const std::string& dtype) const override {
    return safetensors_element_size(dtype) == 0 ? "safetensors files have no such type" : "";
  }
  std::string commit_file() const override { return std::string{manifest_name}; }
  checkpoint_facts facts(std::span<const std::byte> commit,
                         const std::string& origin) const override {
    auto what = parse_manifest(commit, origin);
    return {std::move(what.loop), what.ranks, what.generation, std::move(what.weights_digest)};
  }
  snapshot read(const std::string& folder) const override { return read_checkpoint(folder); }
  void remove(const std::string& folder) const override { remove_checkpoint(folder); }
  found_checkpoint latest(const std::string& run) const override { return latest_checkpoint(run); }

private:
  std::map<std::string, std::string> versions_;
};

}  // namespace

std::shared_ptr<const checkpoint_io> safetensors_checkpoints(
    std::map<std::string, std::string> versions) {
  return std::make_shared<safetensors_io>(std::move(versions));
}

}  // namespace troupe
