#include "tests/support/memory_disk.hpp"

#include <fstream>
#include <system_error>

namespace troupe::testing {

namespace fs = std::filesystem;

namespace {

struct refused {
  std::errc why;
  std::string path;
};

}  // namespace

struct memory_disk::operations {
  memory_disk& disk;

  node& at(std::size_t id) { return disk.nodes_[id]; }

  static void inside(const std::string& path) {
    const auto normal = fs::path{path}.lexically_normal();
    if (path.empty() || (!normal.is_absolute() && *normal.begin() == ".."))
      throw refused{std::errc::invalid_argument, path};
  }
  // The folder and name of a path; parts that are links are not followed.
  place find(const std::string& given) {
    inside(given);
    const auto normal = (fs::path{"/"} / given).lexically_normal();
    place result{0, {}, given};
    for (const auto& part : normal.relative_path()) {
      if (part.empty()) continue;
      if (!result.name.empty()) result.folder = entry(result);
      if (at(result.folder).what != node::kind::folder)
        throw refused{std::errc::not_a_directory, given};
      result.name = part.string();
    }
    return result;
  }
  bool is_there(const place& p) { return p.name.empty() || at(p.folder).now.contains(p.name); }
  std::size_t entry(const place& p) {
    if (p.name.empty()) return 0;
    const auto found = at(p.folder).now.find(p.name);
    if (found == at(p.folder).now.end())
      throw refused{std::errc::no_such_file_or_directory, p.path};
    return found->second;
  }
  std::size_t folder(const std::string& path) {
    const auto id = entry(find(path));
    if (at(id).what != node::kind::folder) throw refused{std::errc::not_a_directory, path};
    return id;
  }
  void put(const place& p, node what) {
    if (p.name.empty() || (is_there(p) && at(entry(p)).what == node::kind::folder))
      throw refused{std::errc::is_a_directory, p.path};
    disk.nodes_.push_back(std::move(what));
    at(p.folder).now[p.name] = disk.nodes_.size() - 1;
  }
  // Removing goes from the leaves up, and no sync orders it.
  void empty(std::size_t id) {
    for (const auto& [name, child] : at(id).now) empty(child);
    at(id).now.clear();
  }

  storage_result operator()(const storage_ops::write& op) {
    auto bytes = std::make_shared<std::vector<std::byte>>();
    for (const auto& chunk : op.chunks) bytes->insert(bytes->end(), chunk->begin(), chunk->end());
    put(find(op.path), {node::kind::file, std::move(bytes), {}, {}, {}});
    return {};
  }
  storage_result operator()(const storage_ops::rename& op) {
    const auto from = find(op.from);
    const auto to = find(op.to);
    if (!is_there(from) && is_there(to)) return {};
    const auto moved = entry(from);
    if (is_there(to)) {
      const auto former = entry(to);
      if (at(moved).what != at(former).what && at(former).what == node::kind::folder)
        throw refused{std::errc::is_a_directory, op.to};
      if (at(moved).what != at(former).what && at(moved).what == node::kind::folder)
        throw refused{std::errc::not_a_directory, op.to};
      at(to.folder).now[to.name] = moved;
      at(from.folder).now.erase(from.name);
      if (at(former).what == node::kind::folder && !at(former).now.empty()) {
        sync(to.folder);
        sync(from.folder);
        empty(former);
      }
      return {};
    }
    at(from.folder).now.erase(from.name);
    at(to.folder).now[to.name] = moved;
    return {};
  }
  void sync(std::size_t id) { at(id).durable = at(id).now; }
  storage_result operator()(const storage_ops::sync_folder& op) {
    sync(folder(op.path));
    return {};
  }
  storage_result operator()(const storage_ops::make_folder& op) {
    std::string path;
    for (const auto& part : (fs::path{"/"} / op.path).lexically_normal().relative_path()) {
      if (part.empty()) continue;
      path += "/" + part.string();
      const auto p = find(path);
      if (!is_there(p)) {
        put(p, {});
        sync(p.folder);
      } else if (at(entry(p)).what != node::kind::folder) {
        throw refused{std::errc::not_a_directory, op.path};
      }
    }
    find(op.path);
    return {};
  }
  storage_result operator()(const storage_ops::remove& op) {
    try {
      const auto p = find(op.path);
      if (p.name.empty()) throw refused{std::errc::invalid_argument, op.path};
      empty(entry(p));
      at(p.folder).now.erase(p.name);
    } catch (const refused& r) {
      if (r.why != std::errc::no_such_file_or_directory) throw;
    }
    return {};
  }
  storage_result operator()(const storage_ops::link& op) {
    if (op.target.empty() || op.target.front() == '/')
      throw refused{std::errc::invalid_argument, op.path};
    const auto p = find(op.path);
    inside((fs::path{op.path}.parent_path() / op.target).string());
    put(p, {node::kind::link, nullptr, op.target, {}, {}});
    return {};
  }
  storage_result operator()(const storage_ops::read& op) {
    auto path = op.path;
    auto id = entry(find(path));
    for (int hops = 0; at(id).what == node::kind::link && hops < 8; ++hops) {
      path = (fs::path{path}.parent_path() / at(id).target).string();
      id = entry(find(path));
    }
    if (at(id).what != node::kind::file) throw refused{std::errc::invalid_argument, op.path};
    if (at(id).bytes->size() > op.limit) throw refused{std::errc::value_too_large, op.path};
    return {{}, {}, at(id).bytes, {}};
  }
  storage_result operator()(const storage_ops::list& op) {
    storage_result result;
    for (const auto& [name, id] : at(folder(op.path)).now) result.names.push_back(name);
    return result;
  }
};

memory_disk::memory_disk() : nodes_(1) {}

storage_result memory_disk::perform(const storage_op& op) {
  try {
    return std::visit(operations{*this}, op);
  } catch (const refused& r) {
    const auto error = std::make_error_code(r.why);
    return {error, r.path + ": " + error.message(), nullptr, {}};
  }
}

std::vector<std::size_t> memory_disk::dirty_folders() const {
  std::vector<std::size_t> dirty;
  for (std::size_t id = 0; id < nodes_.size(); ++id)
    if (nodes_[id].now != nodes_[id].durable) dirty.push_back(id);
  return dirty;
}

memory_disk memory_disk::after_power_loss(std::uint64_t kept) const {
  auto left = *this;
  std::size_t index = 0;
  for (const auto id : dirty_folders()) {
    auto& folder = left.nodes_[id];
    if ((kept >> index++ & 1) == 0) folder.now = folder.durable;
    folder.durable = folder.now;
  }
  return left;
}

// Folders before what they hold.
template <class F>
void memory_disk::walk(F visit) const {
  std::vector<std::pair<std::size_t, fs::path>> open{{0, {}}};
  while (!open.empty()) {
    const auto [id, path] = open.back();
    open.pop_back();
    visit(path, nodes_[id]);
    for (const auto& [name, child] : nodes_[id].now) open.emplace_back(child, path / name);
  }
}

std::string memory_disk::fingerprint() const {
  std::string all;
  walk([&](const fs::path& path, const node& what) {
    all += path.string() + "\n" + what.target + "\n";
    if (what.bytes)
      all.append(reinterpret_cast<const char*>(what.bytes->data()), what.bytes->size());
  });
  return all;
}

void memory_disk::unload(const fs::path& to) const {
  walk([&](const fs::path& below, const node& what) {
    const auto path = to / below;
    if (what.what == node::kind::folder) {
      fs::create_directories(path);
    } else if (what.what == node::kind::link) {
      fs::create_symlink(what.target, path);
    } else {
      std::ofstream out{path, std::ios::binary};
      out.write(reinterpret_cast<const char*>(what.bytes->data()),
                static_cast<std::streamsize>(what.bytes->size()));
    }
  });
}

void memory_storage::submit(storage_op op, std::function<void(storage_result)> done) {
  waiting_.emplace_back(std::move(op), std::move(done));
  if (submitted) submitted();
}

bool memory_storage::step() {
  if (waiting_.empty()) return false;
  auto [op, done] = std::move(waiting_.front());
  waiting_.pop_front();
  const auto refusal = fault ? fault(op) : std::string{};
  done(refusal.empty()
           ? disk_.perform(op)
           : storage_result{std::make_error_code(std::errc::io_error), refusal, nullptr, {}});
  return true;
}

}  // namespace troupe::testing
