// The simulated disk as a value: what is durable, what a crash leaves, and what exists.
#include "backends/simulated/disk.hpp"

#include "troupe/detail/stable_hash.hpp"

#include <algorithm>
#include <fstream>

namespace troupe {

namespace {

constexpr std::size_t page_bytes = 4096;

using bytes_ptr = std::shared_ptr<const std::vector<std::byte>>;

bool same_bytes(const bytes_ptr& a, const bytes_ptr& b) { return a == b || (a && b && *a == *b); }

// Whether this page has the same content in `a` and `b`.
bool same_page(const std::vector<std::byte>& a, const bytes_ptr& b, std::size_t page) {
  const auto begin = page * page_bytes;
  const auto end = std::min(a.size(), begin + page_bytes);
  return b && b->size() == a.size() &&
         std::equal(a.data() + begin, a.data() + end, b->data() + begin);
}

std::string_view text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

std::string_view to_string(storage_fault::kind k) {
  switch (k) {
    case storage_fault::kind::none: return "none";
    case storage_fault::kind::error: return "error";
    case storage_fault::kind::full: return "full";
    case storage_fault::kind::failed_sync: return "failed_sync";
    case storage_fault::kind::lost_sync: return "lost_sync";
    case storage_fault::kind::torn: return "torn";
    case storage_fault::kind::bit_flip: return "bit_flip";
    case storage_fault::kind::slow: return "slow";
    case storage_fault::kind::hang: return "hang";
  }
  return "unknown";
}

simulated_disk::simulated_disk() { nodes_[0]; }

bool simulated_disk::node::operator==(const node& other) const {
  return what == other.what && target == other.target && now == other.now &&
         synced == other.synced && same_bytes(bytes, other.bytes) &&
         same_bytes(durable, other.durable);
}

bool operator==(const simulated_disk& a, const simulated_disk& b) {
  return a.nodes_ == b.nodes_ && a.unsynced_ == b.unsynced_ && a.next_ == b.next_;
}

// --- what is durable -----------------------------------------------------------------------------

bool simulated_disk::apply(const change& what, entries_of node::*to) {
  bool lost = false;
  const auto lets_go = [&](node_id id) {
    lost = lost || std::ranges::none_of(what, [id](const auto& c) { return c.becomes == id; });
  };
  for (const auto& one : what) {
    const auto folder = nodes_.find(one.folder);
    if (folder == nodes_.end()) {  // it is no longer reachable
      lost = true;
      continue;
    }
    auto& entries = folder->second.*to;
    const auto known = entries.find(one.name);
    if (known != entries.end()) lets_go(known->second);
    if (!one.becomes) {
      if (known != entries.end()) entries.erase(known);
    } else if (known != entries.end()) {
      known->second = *one.becomes;
    } else {
      entries.emplace(one.name, *one.becomes);
    }
  }
  return lost;
}

// A change of an entry depends on the earlier change of the same entry.
std::vector<bool> simulated_disk::with_what_they_rest_on(std::vector<bool> kept) const {
  std::vector<const entry_change*> touched;  // only a few
  for (auto i = unsynced_.size(); i-- > 0;) {
    const auto is_touched = [&](const entry_change& c) {
      return std::ranges::any_of(touched, [&](const entry_change* t) {
        return t->folder == c.folder && t->name == c.name;
      });
    };
    if (!kept[i] && std::ranges::none_of(unsynced_[i], is_touched)) continue;
    kept[i] = true;
    for (const auto& c : unsynced_[i]) touched.push_back(&c);
  }
  return kept;
}

void simulated_disk::sync(node_id folder) {
  if (unsynced_.empty()) return;  // nothing has changed since everything was reachable
  std::vector<bool> kept(unsynced_.size());
  for (std::size_t i = 0; i < kept.size(); ++i)
    kept[i] = std::ranges::any_of(unsynced_[i],
                                  [&](const entry_change& c) { return c.folder == folder; });
  if (std::ranges::find(kept, true) == kept.end()) return;
  kept = with_what_they_rest_on(std::move(kept));
  bool lost = false;
  std::vector<change> left;
  for (std::size_t i = 0; i < kept.size(); ++i) {
    if (kept[i])
      lost = apply(unsynced_[i], &node::synced) || lost;
    else
      left.push_back(std::move(unsynced_[i]));
  }
  unsynced_ = std::move(left);
  if (lost) forget_unreachable();
}

void simulated_disk::forget_unreachable() {
  std::vector<bool> reached(static_cast<std::size_t>(next_));
  std::vector<node_id> open;
  open.reserve(2 * nodes_.size());
  open.push_back(0);
  for (const auto& what : unsynced_)
    for (const auto& c : what)
      if (c.becomes) open.push_back(*c.becomes);
  while (!open.empty()) {
    const auto id = open.back();
    open.pop_back();
    if (reached[id]) continue;
    reached[id] = true;
    const auto& one = nodes_.at(id);
    for (const auto* entries : {&one.now, &one.synced})
      for (const auto& [name, child] : *entries) open.push_back(child);
  }
  std::erase_if(nodes_, [&](const auto& one) { return !reached[one.first]; });
  std::erase_if(unsynced_, [&](const change& what) {
    return std::ranges::none_of(what, [&](const entry_change& c) { return reached[c.folder]; });
  });
}

std::vector<std::pair<simulated_disk::node_id, std::size_t>> simulated_disk::unsynced_pages()
    const {
  std::vector<std::pair<node_id, std::size_t>> pages;
  for (const auto& [id, one] : nodes_) {
    if (one.what != entry::kind::file || same_bytes(one.bytes, one.durable)) continue;
    for (std::size_t page = 0; page * page_bytes < one.bytes->size(); ++page)
      if (!same_page(*one.bytes, one.durable, page)) pages.emplace_back(id, page);
  }
  return pages;
}

// --- crashes -------------------------------------------------------------------------------------

std::size_t simulated_disk::pending() const { return unsynced_.size() + unsynced_pages().size(); }

simulated_disk simulated_disk::after_power_loss(
    const std::function<bool(std::size_t)>& kept) const {
  auto left = *this;
  std::vector<bool> changes(unsynced_.size());
  for (std::size_t i = 0; i < changes.size(); ++i) changes[i] = kept(i);
  changes = with_what_they_rest_on(std::move(changes));
  for (std::size_t i = 0; i < changes.size(); ++i)
    if (changes[i]) left.apply(unsynced_[i], &node::synced);
  left.unsynced_.clear();

  std::map<node_id, std::vector<std::byte>> torn;
  auto index = changes.size();
  for (const auto& [id, page] : unsynced_pages()) {
    const auto& file = nodes_.at(id);
    auto& bytes = torn[id];
    if (bytes.empty() && file.durable) bytes = *file.durable;
    if (!kept(index++)) continue;
    bytes.resize(file.bytes->size());
    const auto begin = page * page_bytes;
    const auto count = std::min(page_bytes, bytes.size() - begin);
    std::copy_n(file.bytes->data() + begin, count, bytes.data() + begin);
  }
  for (auto& [id, one] : left.nodes_) {
    one.now = one.synced;
    if (one.what != entry::kind::file) continue;
    if (const auto found = torn.find(id); found != torn.end())
      one.bytes = std::make_shared<const std::vector<std::byte>>(std::move(found->second));
    one.durable = one.bytes;
  }
  left.forget_unreachable();
  return left;
}

simulated_disk simulated_disk::after_power_loss(std::uint64_t kept) const {
  return after_power_loss([kept](std::size_t i) { return i < 64 && (kept >> i & 1) != 0; });
}

// --- what is there -------------------------------------------------------------------------------

std::vector<simulated_disk::entry> simulated_disk::entries() const {
  std::vector<entry> all;
  std::vector<std::pair<node_id, std::string>> open{{0, {}}};
  while (!open.empty()) {
    auto [id, path] = std::move(open.back());
    open.pop_back();
    const auto& one = nodes_.at(id);
    for (auto child = one.now.rbegin(); child != one.now.rend(); ++child)
      open.emplace_back(child->second, path + "/" + child->first);
    all.push_back({one.what, std::move(path), one.bytes, one.target});
  }
  return all;
}

std::uint64_t simulated_disk::digest() const {
  stable_hasher hash;
  for (const auto& one : entries()) {
    hash.add(one.what).add(one.path).add(one.target).add(one.bytes != nullptr);
    if (one.bytes) hash.add(text_of(*one.bytes));
  }
  return hash.digest();
}

void simulated_disk::unload(const std::filesystem::path& to) const {
  namespace fs = std::filesystem;
  for (const auto& one : entries()) {
    const auto path = to / fs::path{one.path}.relative_path();
    if (one.what == entry::kind::folder) {
      fs::create_directories(path);
    } else if (one.what == entry::kind::link) {
      fs::create_symlink(one.target, path);
    } else {
      std::ofstream out{path, std::ios::binary};
      const auto text = text_of(*one.bytes);
      out.write(text.data(), static_cast<std::streamsize>(text.size()));
      if (!out.flush())
        throw fs::filesystem_error{"a simulated disk could not be unloaded", path,
                                   std::make_error_code(std::errc::io_error)};
    }
  }
}

}  // namespace troupe
