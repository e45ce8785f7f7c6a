#include "backends/checkpoint/run_checkpoints.hpp"

#include "backends/checkpoint/regular_file.hpp"
#include "troupe/failure.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <system_error>

namespace troupe {

namespace {

namespace fs = std::filesystem;

struct numbered {
  std::int64_t step;
  fs::path path;
};

// Newest first. Links are not followed: a checkpoint is a folder.
std::vector<numbered> folders_in(const fs::path& checkpoints) {
  std::vector<numbered> found;
  std::error_code error;
  for (fs::directory_iterator it{checkpoints, error}, end; !error && it != end;
       it.increment(error)) {
    const auto step = step_of_checkpoint_folder(it->path().filename().string());
    if (step >= 0 && it->symlink_status().type() == fs::file_type::directory)
      found.push_back({step, it->path()});
  }
  if (error && error != std::errc::no_such_file_or_directory) refuse(checkpoints, error.message());
  std::sort(found.begin(), found.end(),
            [](const auto& a, const auto& b) { return a.step > b.step; });
  return found;
}

struct link_facts {
  bool there = false;
  std::string target;  ///< a plain name, or empty
};

link_facts read_link(const fs::path& checkpoints) {
  std::error_code error;
  const auto target = fs::read_symlink(checkpoints / latest_link, error);
  if (error) return {};
  const auto name = target.string();
  return {true, step_of_checkpoint_folder(name) >= 0 ? name : std::string{}};
}

std::optional<std::string> why_bad(const fs::path& folder) {
  try {
    load_checkpoint(folder);
    return std::nullopt;
  } catch (const user_error& e) {
    return e.what();
  }
}

// Text to append to the error of `bad`.
std::string newest_good_beside(const fs::path& bad) {
  try {
    // Resolved first: a link or a trailing slash would make its name differ from the listed one.
    const auto place = fs::weakly_canonical(bad / ".");
    for (const auto& other : folders_in(place.parent_path()))
      if (other.path.filename() != place.filename() && !why_bad(other.path))
        return fmt::format("; newest good one: {}", other.path.string());
    const bool of_run = step_of_checkpoint_folder(place.filename().string()) >= 0;
    return of_run ? "; there is no good one beside it" : "";
  } catch (const std::exception&) {
    return {};  // the folder cannot be read; the first error is sufficient
  }
}

checkpoint_contents load_or_name_good(const fs::path& folder) {
  try {
    return load_checkpoint(folder);
  } catch (const user_error& e) {
    throw user_error(e.code(), e.what() + newest_good_beside(folder));
  }
}

}  // namespace

manifest verify_checkpoint(const fs::path& folder) { return load_or_name_good(folder).what; }

snapshot read_checkpoint(const fs::path& folder) {
  auto all = load_or_name_good(folder);
  return {std::move(all.what.loop),           all.what.ranks,       all.what.generation,
          std::move(all.what.weights_digest), std::move(all.model), std::move(all.optimizer),
          std::move(all.what.state)};
}

std::vector<listed_checkpoint> list_checkpoints(
    const fs::path& run, const std::function<manifest(const fs::path&)>& inspect) {
  std::error_code error;
  if (!fs::is_directory(run, error)) refuse(run, "no such run folder");
  const auto checkpoints = run / checkpoints_folder;
  const auto link = read_link(checkpoints);
  std::vector<listed_checkpoint> list;
  for (const auto& [step, path] : folders_in(checkpoints)) {
    listed_checkpoint entry{path.string(), step, {}, {}, path.filename() == link.target};
    try {
      entry.what = inspect(path);
    } catch (const user_error& e) {
      entry.damage = e.what();
    }
    list.push_back(std::move(entry));
  }
  const auto good = [](const listed_checkpoint& one) { return one.damage.empty(); };
  if (const auto newest = std::ranges::find_if(list, good); !link.there && newest != list.end())
    newest->latest = true;
  std::reverse(list.begin(), list.end());
  return list;
}

void remove_checkpoint(const fs::path& folder) {
  auto path = folder.lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  const auto step = step_of_checkpoint_folder(path.filename().string());
  if (step < 0) refuse(path, "not the name of a checkpoint, so it is not removed as one");
  const auto hidden = path.parent_path() / ("." + checkpoint_folder_name(step) + ".tmp");
  std::error_code error;
  if (!fs::exists(fs::symlink_status(path, error))) return;
  fs::remove_all(hidden, error);
  if (!error) fs::rename(path, hidden, error);
  if (!error) fs::remove_all(hidden, error);
  if (error) refuse(path, fmt::format("cannot be removed: {}", error.message()));
}

found_checkpoint latest_checkpoint(const fs::path& run) {
  const auto checkpoints = run / checkpoints_folder;
  const auto link = read_link(checkpoints);
  found_checkpoint found;
  const auto take = [&](const fs::path& folder) {
    if (auto why = why_bad(folder)) {
      found.refused.push_back({folder.string(), std::move(*why)});
      return false;
    }
    found.path = folder.string();
    return true;
  };
  if (link.there && link.target.empty())
    found.refused.push_back({(checkpoints / latest_link).string(),
                             fmt::format("{}: does not name a checkpoint beside it",
                                         (checkpoints / latest_link).string())});
  if (!link.target.empty() && take(checkpoints / link.target)) return found;
  for (const auto& other : folders_in(checkpoints))
    if (other.path.filename() != link.target && take(other.path)) return found;
  if (found.refused.empty())
    refuse(checkpoints,
           "no checkpoint there: the run has written none; a fit without --resume begins anew");
  std::string why = "no good checkpoint there; start anew in another --run-dir";
  for (const auto& bad : found.refused) why += "; " + bad.why;
  refuse(checkpoints, why);
}

}  // namespace troupe
