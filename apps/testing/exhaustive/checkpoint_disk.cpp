#include "apps/testing/exhaustive/checkpoint_disk.hpp"

#include <fmt/format.h>

#include <cstring>

#include "troupe/checkpoint.hpp"

namespace troupe::testing {

std::string to_string(const checkpoint_origin& of) {
  return fmt::format("step {} of run {}, generation {}", of.step, of.run, of.generation);
}

std::shared_ptr<const std::vector<std::byte>> content_of(const checkpoint_origin& of) {
  auto content = std::make_shared<std::vector<std::byte>>(sizeof of);
  std::memcpy(content->data(), &of, sizeof of);
  return content;
}

std::optional<checkpoint_origin> origin_in(const simulated_disk& disk, const std::string& path) {
  checkpoint_origin of;
  const auto there = disk.read(storage_ops::read{path, sizeof of});
  if (there.error || there.bytes->size() != sizeof of) return std::nullopt;
  std::memcpy(&of, there.bytes->data(), sizeof of);
  return of;
}

double monitor_of(std::int64_t step) { return static_cast<double>(step * 3 % 5); }

std::optional<checkpoint_origin> whole(const simulated_disk& disk, const std::string& folder_name) {
  const auto path = fmt::format("{}/{}/", checkpoints_path, folder_name);
  const auto of = origin_in(disk, path + commit_file);
  if (!of || of != origin_in(disk, path + data_file)) return std::nullopt;
  return of->step == step_of_checkpoint_folder(folder_name) ? of : std::nullopt;
}

checkpoint_names names_on(const simulated_disk& disk) {
  checkpoint_names found;
  const auto below = fmt::format("/{}/", checkpoints_path);
  for (const auto& e : disk.entries()) {
    if (!e.path.starts_with(below) || e.path.find('/', below.size()) != std::string::npos) continue;
    found.all.push_back(e.path.substr(below.size()));
    if (found.all.back() == latest_link) found.latest = e.target;
  }
  return found;
}

std::optional<checkpoint_origin> resolved(const simulated_disk& disk) {
  const auto names = names_on(disk);
  if (!names.latest.empty())
    if (auto of = whole(disk, names.latest)) return of;
  std::optional<checkpoint_origin> newest;
  for (const auto& name : names.all)
    if (auto of = whole(disk, name); of && (!newest || of->step > newest->step)) newest = of;
  return newest;
}

}  // namespace troupe::testing
