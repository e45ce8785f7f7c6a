#include "apps/troupe/checkpoint_reader.hpp"

#include "backends/checkpoint/safetensors_io.hpp"
#include "backends/checkpoint_facts.hpp"
#include "troupe/failure.hpp"

#include <fmt/format.h>

namespace troupe::program {

checkpoint_reader::checkpoint_reader(std::shared_ptr<const checkpoint_io> own)
    : own_(std::move(own)), format_(own_ ? own_ : safetensors_checkpoints({})) {}

found_checkpoint checkpoint_reader::latest(const std::string& run) const {
  return format_->latest(run);
}

snapshot checkpoint_reader::read(const std::string& folder) const { return format_->read(folder); }

manifest checkpoint_reader::inspect(const std::string& folder) const {
  if (!own_) return inspect_checkpoint(folder);
  auto facts = facts_at(*own_, folder);
  if (!facts)
    throw user_error(errc::checkpoint,
                     fmt::format("{}: no checkpoint of this program: it has no {}, or that cannot "
                                 "be read",
                                 folder, own_->commit_file()));
  return {.loop = std::move(facts->loop),
          .ranks = facts->ranks,
          .generation = facts->generation,
          .weights_digest = std::move(facts->weights_digest)};
}

std::vector<listed_checkpoint> checkpoint_reader::list(const std::string& run) const {
  return list_checkpoints(
      run, [this](const std::filesystem::path& one) { return inspect(one.string()); });
}

}  // namespace troupe::program
