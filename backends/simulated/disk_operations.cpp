// The storage port's operations on the simulated disk, made of the same calls as in the real
// adapter (backends/local/file_operations.cpp).
#include "backends/simulated/disk.hpp"
#include "backends/storage_path.hpp"

#include <algorithm>
#include <boost/container/small_vector.hpp>
#include <limits>
#include <optional>
#include <span>
#include <string_view>
#include <system_error>

namespace troupe {

namespace {

using kind = storage_fault::kind;

// Thrown when an operation fails.
struct refused {
  std::errc why;
  std::string path;
};
// Thrown when the program is killed.
struct cut {};

std::string fix_for(std::errc why) {
  if (why == std::errc::no_space_on_device)
    return "; free some space, or choose a folder on another disk";
  return {};
}

storage_result answer_to(const refused& r) {
  const auto error = std::make_error_code(r.why);
  return {error, r.path + ": " + error.message() + fix_for(r.why), nullptr, {}};
}

constexpr int hops_max = 8;  // links in one path

// Parts of a path, as views into it.
using names = boost::container::small_vector<std::string_view, 8>;

template <class Take>
void cut_at_slashes(std::string_view path, Take take) {
  for (std::size_t at = 0; at <= path.size();) {
    const auto end = std::min(path.find('/', at), path.size());
    const auto part = path.substr(at, end - at);
    at = end + 1;
    if (!part.empty() && part != ".") take(part);
  }
}

// Resolves `..` before links are followed.
names parts_of(std::string_view given) {
  if (given.empty() || given.find('\0') != std::string_view::npos)
    throw refused{std::errc::invalid_argument, std::string{given}};
  names parts;
  cut_at_slashes(given, [&](std::string_view part) {
    if (part != "..") {
      parts.push_back(part);
    } else if (!parts.empty()) {
      parts.pop_back();
    } else if (given.front() != '/') {
      throw refused{std::errc::invalid_argument, std::string{given}};
    }
  });
  return parts;
}

std::string folder_of(const std::string& path) {
  const auto slash = path.rfind('/');
  return slash == std::string::npos ? std::string{} : path.substr(0, slash + 1);
}

std::string hidden_beside(std::string_view name) { return "." + std::string{name} + ".part"; }

}  // namespace

// The calls of a program to the file system. The program may be killed after each of them.
struct simulated_disk::calls {
  simulated_disk& disk;
  storage_fault fault = {};
  std::size_t left = std::numeric_limits<std::size_t>::max();

  void spend() {
    if (left-- == 0) throw cut{};
  }
  void change_entries(change what) {
    spend();
    disk.apply(what, &node::now);
    disk.unsynced_.push_back(std::move(what));
  }
  node_id make(node_id folder, const std::string& name, node what) {
    spend();
    const auto id = disk.next_++;
    disk.nodes_[id] = std::move(what);
    change entry{{folder, name, id}};
    disk.apply(entry, &node::now);
    disk.unsynced_.push_back(std::move(entry));
    return id;
  }
  void fill(node_id file, content bytes) {
    spend();
    disk.nodes_.at(file).bytes = std::move(bytes);
  }
  void check_sync(const std::string& path) const {
    if (fault.what == kind::failed_sync) throw refused{std::errc::io_error, path};
  }
  void sync_file(node_id file, const std::string& path) {
    spend();
    check_sync(path);
    auto& one = disk.nodes_.at(file);
    if (fault.what != kind::lost_sync) one.durable = one.bytes;
  }
  void sync_folder(node_id folder, const std::string& path) {
    spend();
    check_sync(path);
    if (fault.what != kind::lost_sync) disk.sync(folder);
  }
};

struct simulated_disk::operations {
  /// Views into a path that the caller owns.
  struct place {
    node_id folder = 0;     ///< of the entry
    std::string_view name;  ///< empty: the root itself
    std::string_view path;
  };

  calls call;

  node& at(node_id id) { return call.disk.nodes_.at(id); }

  // Follows links within the path, but not the last one.
  place find(std::string_view given) {
    const auto found = look_for(given);
    if (!found) missing(given);
    return *found;
  }
  // Empty when a folder of the path does not exist.
  std::optional<place> look_for(std::string_view given) {
    const auto parts = parts_of(given);
    if (parts.empty()) return place{0, {}, given};
    const auto folder = folder_below({parts.data(), parts.size() - 1}, given);
    if (!folder) return std::nullopt;
    return place{*folder, parts.back(), given};
  }
  [[noreturn]] static void missing(std::string_view path) {
    throw refused{std::errc::no_such_file_or_directory, std::string{path}};
  }
  std::optional<node_id> folder_below(std::span<const std::string_view> ahead,
                                      std::string_view given) {
    node_id here = 0;
    for (const auto part : ahead) {
      const auto id = look_at({here, part, given});
      if (!id) return std::nullopt;
      const auto what = at(*id).what;
      if (what == entry::kind::link) return folder_behind_links(ahead, given);
      if (what == entry::kind::file) throw refused{std::errc::not_a_directory, std::string{given}};
      here = *id;
    }
    return here;
  }
  // The same for a path with links.
  std::optional<node_id> folder_behind_links(std::span<const std::string_view> ahead,
                                             std::string_view given) {
    boost::container::small_vector<node_id, 8> way{0};
    int hops = 0;
    names parts(ahead.rbegin(), ahead.rend());  // the next part is last
    while (!parts.empty()) {
      const auto part = parts.back();
      parts.pop_back();
      if (part == "..") {
        if (way.size() > 1) way.pop_back();
        continue;
      }
      const auto id = look_at({way.back(), part, given});
      if (!id) return std::nullopt;
      const auto& one = at(*id);
      if (one.what == entry::kind::file)
        throw refused{std::errc::not_a_directory, std::string{given}};
      if (one.what == entry::kind::folder) {
        way.push_back(*id);
        continue;
      }
      if (++hops > hops_max)
        throw refused{std::errc::too_many_symbolic_link_levels, std::string{given}};
      names target;
      cut_at_slashes(one.target, [&](std::string_view name) { target.push_back(name); });
      parts.insert(parts.end(), target.rbegin(), target.rend());
    }
    return way.back();
  }
  bool is_there(const place& p) { return p.name.empty() || at(p.folder).now.contains(p.name); }
  bool is_there(std::string_view path) {
    const auto found = look_for(path);
    return found && is_there(*found);
  }
  std::optional<node_id> look_at(const place& p) {
    if (p.name.empty()) return 0;
    const auto& entries = at(p.folder).now;
    const auto found = entries.find(p.name);
    if (found == entries.end()) return std::nullopt;
    return found->second;
  }
  node_id entry_at(const place& p) {
    const auto found = look_at(p);
    if (!found) missing(p.path);
    return *found;
  }
  node_id folder_at(std::string_view path) {
    const auto found = folder_below(parts_of(path), path);
    if (!found) missing(path);
    return *found;
  }
  // A file or a link may be created here.
  void check_free(const place& p) {
    if (p.name.empty() || (is_there(p) && at(entry_at(p)).what == entry::kind::folder))
      throw refused{std::errc::is_a_directory, std::string{p.path}};
  }
  void check_space(const std::string& path) const {
    if (call.fault.what == kind::full) throw refused{std::errc::no_space_on_device, path};
  }
  void publish(const place& p, node_id what) {
    call.change_entries(
        {{p.folder, hidden_beside(p.name), {}}, {p.folder, std::string{p.name}, what}});
  }
  // From the leaves up, without any sync.
  void empty(node_id id) {
    const auto inside = at(id).now;
    for (const auto& [name, child] : inside) {
      empty(child);
      call.change_entries({{id, name, {}}});
    }
  }

  storage_result operator()(const storage_ops::write& op) {
    const auto p = find(op.path);
    check_free(p);
    check_space(op.path);
    auto bytes = std::make_shared<std::vector<std::byte>>();
    for (const auto& chunk : op.chunks) bytes->insert(bytes->end(), chunk->begin(), chunk->end());
    spoil(*bytes);
    const auto part = hidden_beside(p.name);
    const auto empty_file = std::make_shared<const std::vector<std::byte>>();
    const auto file = call.make(p.folder, part, {entry::kind::file, empty_file, {}, {}, {}, {}});
    call.fill(file, std::move(bytes));
    try {
      call.sync_file(file, op.path);
    } catch (const refused&) {
      call.change_entries({{p.folder, part, {}}});
      throw;
    }
    publish(p, file);
    return {};
  }

  // Applies a torn write or a flipped bit to the bytes.
  void spoil(std::vector<std::byte>& bytes) const {
    if (bytes.empty()) return;
    if (call.fault.what == kind::torn) {
      const auto from = static_cast<std::ptrdiff_t>(call.fault.draw % bytes.size());
      std::fill(bytes.begin() + from, bytes.end(), std::byte{0});
    } else if (call.fault.what == kind::bit_flip) {
      const auto bit = call.fault.draw % (bytes.size() * 8);
      bytes[bit / 8] ^= std::byte{1} << bit % 8;
    }
  }

  storage_result operator()(const storage_ops::rename& op) {
    const auto there = look_for(op.from);
    if ((!there || !is_there(*there)) && is_there(op.to)) return {};  // already done
    if (!there) missing(op.from);
    const auto& from = *there;
    const auto to = find(op.to);
    const auto moved = entry_at(from);
    const auto parts = parts_of(op.from);
    const auto target = parts_of(op.to);
    if (parts == target) return {};
    const auto shorter = static_cast<std::ptrdiff_t>(std::min(parts.size(), target.size()));
    if (std::equal(parts.begin(), parts.begin() + shorter, target.begin()))
      throw refused{std::errc::invalid_argument, op.to};  // one contains the other
    if (!is_there(to)) return move(from, to, moved);
    const auto former = entry_at(to);
    if (at(moved).what != at(former).what && at(former).what == entry::kind::folder)
      throw refused{std::errc::is_a_directory, op.to};
    if (at(moved).what != at(former).what && at(moved).what == entry::kind::folder)
      throw refused{std::errc::not_a_directory, op.to};
    if (at(former).now.empty()) return move(from, to, moved);
    const std::string from_name{from.name}, to_name{to.name};
    call.change_entries({{to.folder, to_name, moved}, {from.folder, from_name, former}});
    call.sync_folder(to.folder, op.to);
    if (from.folder != to.folder) call.sync_folder(from.folder, op.from);
    empty(former);
    call.change_entries({{from.folder, from_name, {}}});
    return {};
  }
  storage_result move(const place& from, const place& to, node_id what) {
    call.change_entries(
        {{from.folder, std::string{from.name}, {}}, {to.folder, std::string{to.name}, what}});
    return {};
  }

  storage_result operator()(const storage_ops::sync_folder& op) {
    call.sync_folder(folder_at(op.path), op.path);
    return {};
  }

  storage_result operator()(const storage_ops::make_folder& op) {
    check_space(op.path);
    std::vector<node_id> parents;
    std::string path = op.path.starts_with('/') ? "/" : "";
    node_id folder = 0;
    for (const auto part : parts_of(op.path)) {
      path += part;
      const place p{folder, part, path};
      parents.push_back(folder);
      const auto there = look_at(p);
      if (!there)
        folder = call.make(folder, std::string{part}, {});
      else
        folder = at(*there).what == entry::kind::folder ? *there : folder_at(path);
      path += "/";
    }
    // Outermost first, because a folder whose own entry is lost loses its contents. Existing
    // folders are synced, too: the program that made them may have been killed before.
    for (const auto id : parents) call.sync_folder(id, op.path);
    return {};
  }

  storage_result operator()(const storage_ops::remove& op) {
    const auto p = look_for(op.path);
    if (!p) return {};
    if (p->name.empty()) throw refused{std::errc::invalid_argument, op.path};
    const auto there = look_at(*p);
    if (!there) return {};
    empty(*there);
    call.change_entries({{p->folder, std::string{p->name}, {}}});
    return {};
  }

  storage_result operator()(const storage_ops::link& op) {
    if (op.target.empty() || op.target.front() == '/')
      throw refused{std::errc::invalid_argument, op.path};
    const auto p = find(op.path);
    parts_of(folder_of(op.path) + op.target);
    check_free(p);
    check_space(op.path);
    const auto part = hidden_beside(p.name);
    publish(p, call.make(p.folder, part, {entry::kind::link, {}, {}, op.target, {}, {}}));
    return {};
  }

  storage_result operator()(const storage_ops::read& op) {
    auto id = entry_at(find(op.path));
    std::string path;  // of the link's target
    for (int hops = 0; at(id).what == entry::kind::link && hops < hops_max; ++hops) {
      path = folder_of(hops == 0 ? op.path : path) + at(id).target;
      id = entry_at(find(path));
    }
    if (at(id).what != entry::kind::file) throw refused{std::errc::invalid_argument, op.path};
    if (at(id).bytes->size() > op.limit) throw refused{std::errc::value_too_large, op.path};
    if (call.fault.what != kind::bit_flip) return {{}, {}, at(id).bytes, {}};
    auto bytes = std::make_shared<std::vector<std::byte>>(*at(id).bytes);
    spoil(*bytes);
    return {{}, {}, std::move(bytes), {}};
  }

  storage_result operator()(const storage_ops::list& op) {
    // A run's first program reads a folder that does not exist: that is an answer, not an
    // exception.
    const auto folder = folder_below(parts_of(op.path), op.path);
    if (!folder) return answer_to({std::errc::no_such_file_or_directory, op.path});
    storage_result result;
    for (const auto& [name, id] : at(*folder).now) result.names.push_back(name);
    return result;
  }
};

storage_result simulated_disk::perform(const storage_op& op, const storage_fault& fault) {
  try {
    if (fault.what == kind::error) throw refused{std::errc::io_error, storage_path(op)};
    return std::visit(operations{{*this, fault}}, op);
  } catch (const refused& r) {
    return answer_to(r);
  }
}

storage_result simulated_disk::read(const storage_ops::read& op) const {
  try {
    return operations{{const_cast<simulated_disk&>(*this)}}(op);  // reads do not change it
  } catch (const refused& r) {
    return answer_to(r);
  }
}

bool simulated_disk::perform_part(const storage_op& op, std::size_t calls_done) {
  try {
    std::visit(operations{{*this, {}, calls_done}}, op);
    return true;
  } catch (const refused&) {
    return true;
  } catch (const cut&) {
    return false;
  }
}

}  // namespace troupe
