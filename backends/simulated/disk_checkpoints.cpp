#include "backends/simulated/disk_checkpoints.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>

#include "troupe/detail/stable_hash.hpp"
#include "troupe/failure.hpp"

namespace troupe {

namespace {

constexpr const char* state_name = "state";
constexpr const char* commit_name = "commit";

using bytes = std::vector<std::byte>;

std::uint64_t checksum(std::span<const std::byte> of) {
  return stable_hasher{}
      .add(std::string_view{reinterpret_cast<const char*>(of.data()), of.size()})
      .digest();
}

class writer {
public:
  writer& add(std::int64_t x) {
    const auto at = out_.size();
    out_.resize(at + sizeof x);
    std::memcpy(out_.data() + at, &x, sizeof x);
    return *this;
  }
  writer& add(std::span<const std::byte> what) {
    add(static_cast<std::int64_t>(what.size()));
    out_.insert(out_.end(), what.begin(), what.end());
    return *this;
  }
  writer& add(const std::string& text) { return add(std::as_bytes(std::span{text})); }
  // Everything so far, followed by its checksum.
  std::shared_ptr<const bytes> with_checksum() {
    add(static_cast<std::int64_t>(checksum(out_)));
    return std::make_shared<const bytes>(std::move(out_));
  }

private:
  bytes out_;
};

class reader {
public:
  reader(std::span<const std::byte> from, const std::string& path) : from_(from), path_(path) {
    if (from.size() < sizeof(std::uint64_t)) refuse("too short");
    std::uint64_t sum = 0;
    std::memcpy(&sum, from.data() + from.size() - sizeof sum, sizeof sum);
    from_ = from.first(from.size() - sizeof sum);
    if (sum != checksum(from_)) refuse("damaged: its checksum does not match");
  }
  std::int64_t number() {
    std::int64_t x = 0;
    std::memcpy(&x, take(sizeof x).data(), sizeof x);
    return x;
  }
  std::span<const std::byte> block() { return take(static_cast<std::size_t>(number())); }
  std::string text() {
    const auto b = block();
    return {reinterpret_cast<const char*>(b.data()), b.size()};
  }
  [[noreturn]] void refuse(const std::string& why) const {
    throw user_error(errc::checkpoint, path_ + ": " + why);
  }

private:
  std::span<const std::byte> take(std::size_t count) {
    if (count > from_.size()) refuse("ends too early");
    const auto part = from_.first(count);
    from_ = from_.subspan(count);
    return part;
  }
  std::span<const std::byte> from_;
  const std::string& path_;
};

void write_facts(writer& out, const snapshot& s) {
  out.add(s.loop.epoch).add(s.loop.batch).add(s.loop.steps).add(s.loop.samples);
  out.add(s.loop.cursor).add(s.loop.earlier_batches).add(s.loop.pending_stop);
  out.add(s.loop.ended_by);
  out.add(s.loop.validated ? 1 : 0).add(static_cast<std::int64_t>(s.loop.last.size()));
  for (const auto& [name, number] : s.loop.last)
    out.add(name).add(std::bit_cast<std::int64_t>(number));
  out.add(static_cast<std::int64_t>(s.loop.early_stopping.size()));
  for (const auto& e : s.loop.early_stopping)
    out.add(std::bit_cast<std::int64_t>(e.best))
        .add(e.has_best ? 1 : 0)
        .add(e.waited)
        .add(e.monitor)
        .add(e.maximize ? 1 : 0);
  out.add(static_cast<std::int64_t>(s.loop.of_validation.size()));
  for (const auto& name : s.loop.of_validation) out.add(name);
  out.add(s.loop.monitored.monitor).add(s.loop.monitored.step).add(s.loop.monitored.epoch);
  out.add(s.ranks).add(static_cast<std::int64_t>(s.generation)).add(s.weights_digest);
}

checkpoint_facts read_facts(reader& in) {
  checkpoint_facts f;
  f.loop.epoch = in.number();
  f.loop.batch = in.number();
  f.loop.steps = in.number();
  f.loop.samples = in.number();
  f.loop.cursor = in.number();
  f.loop.earlier_batches = in.number();
  f.loop.pending_stop = static_cast<std::uint8_t>(in.number());
  f.loop.ended_by = static_cast<std::uint8_t>(in.number());
  f.loop.validated = in.number() != 0;
  for (auto n = in.number(); n > 0; --n) {
    auto name = in.text();
    f.loop.last[std::move(name)] = std::bit_cast<double>(in.number());
  }
  for (auto n = in.number(); n > 0; --n) {
    early_stopping_state e;
    e.best = std::bit_cast<double>(in.number());
    e.has_best = in.number() != 0;
    e.waited = static_cast<std::int32_t>(in.number());
    e.monitor = in.text();
    e.maximize = in.number() != 0;
    f.loop.early_stopping.push_back(e);
  }
  for (auto n = in.number(); n > 0; --n) f.loop.of_validation.insert(in.text());
  f.loop.monitored.monitor = in.text();
  f.loop.monitored.step = in.number();
  f.loop.monitored.epoch = in.number();
  f.ranks = static_cast<std::int32_t>(in.number());
  f.generation = static_cast<std::uint64_t>(in.number());
  f.weights_digest = in.text();
  return f;
}

void write_tensors(writer& out, const std::vector<tensor_blob>& all) {
  out.add(static_cast<std::int64_t>(all.size()));
  for (const auto& t : all) {
    out.add(t.name).add(t.dtype).add(static_cast<std::int64_t>(t.shape.size()));
    for (const auto n : t.shape) out.add(n);
    out.add(std::span<const std::byte>{*t.bytes});
  }
}

std::vector<tensor_blob> read_tensors(reader& in) {
  std::vector<tensor_blob> all;
  for (auto n = in.number(); n > 0; --n) {
    tensor_blob t;
    t.name = in.text();
    t.dtype = in.text();
    for (auto d = in.number(); d > 0; --d) t.shape.push_back(in.number());
    const auto b = in.block();
    t.bytes = std::make_shared<const bytes>(b.begin(), b.end());
    all.push_back(std::move(t));
  }
  return all;
}

class small_checkpoints final : public checkpoint_io {
public:
  explicit small_checkpoints(std::function<const simulated_storage&()> where)
      : storage_(std::move(where)) {}

  std::vector<checkpoint_file> encode(const snapshot& what) const override {
    writer state;
    write_tensors(state, what.model);
    write_tensors(state, what.optimizer);
    state.add(what.state);
    auto body = state.with_checksum();
    writer commit;
    write_facts(commit, what);
    commit.add(static_cast<std::int64_t>(body->size()));
    commit.add(static_cast<std::int64_t>(checksum(*body)));
    return {{state_name, {std::move(body)}}, {commit_name, {commit.with_checksum()}}};
  }
  std::string commit_file() const override { return commit_name; }
  checkpoint_facts facts(std::span<const std::byte> commit,
                         const std::string& origin) const override {
    reader in{commit, origin};
    return read_facts(in);
  }
  snapshot read(const std::string& folder) const override {
    const auto changes = storage_().changes();
    if (last_read_.changes == changes && last_read_.folder == folder) return last_read_.what;
    auto commit = file(folder, commit_name);
    auto state = file(folder, state_name);
    if (last_read_.commit != commit || last_read_.state != state) {
      auto what =
          decode(*commit, path_of(folder, commit_name), *state, path_of(folder, state_name));
      last_read_ = {{}, {}, std::move(commit), std::move(state), std::move(what)};
    }
    last_read_.changes = changes;
    last_read_.folder = folder;
    return last_read_.what;
  }
  // The storage port has removed the folder: nothing else changes the disk.
  void remove(const std::string& folder) const override {
    if (!storage_().disk().read({path_of(folder, commit_name), commit_file_limit}).error)
      throw internal_error(folder + ": a simulated disk is changed by its storage port only");
  }
  found_checkpoint latest(const std::string& run) const override;

private:
  static snapshot decode(const bytes& commit, const std::string& commit_path, const bytes& state,
                         const std::string& state_path) {
    reader facts{commit, commit_path};
    auto about = read_facts(facts);
    const auto size = facts.number();
    const auto sum = facts.number();
    reader in{state, state_path};
    if (size != static_cast<std::int64_t>(state.size()) ||
        sum != static_cast<std::int64_t>(checksum(state)))
      in.refuse("is not the file that the commit file names");
    snapshot out;
    out.loop = std::move(about.loop);
    out.ranks = about.ranks;
    out.generation = about.generation;
    out.weights_digest = std::move(about.weights_digest);
    out.model = read_tensors(in);
    out.optimizer = read_tensors(in);
    out.state = in.text();
    return out;
  }
  static std::string path_of(const std::string& folder, const char* name) {
    return folder + "/" + name;
  }
  std::shared_ptr<const bytes> file(const std::string& folder, const char* name) const {
    auto result = storage_().disk().read({path_of(folder, name), commit_file_limit});
    if (result.error) throw user_error(errc::checkpoint, result.text);
    return result.bytes;
  }

  std::function<const simulated_storage&()> storage_;
  // All ranks of a run read the same checkpoint: it is searched once while the disk does not
  // change, and content in the same object is decoded once.
  struct decoded {
    std::optional<std::uint64_t> changes;
    std::string folder;
    std::shared_ptr<const bytes> commit, state;
    snapshot what;
  };
  mutable decoded last_read_;
};

found_checkpoint small_checkpoints::latest(const std::string& run) const {
  const auto below = run + "/" + checkpoints_folder;
  std::string linked;
  std::vector<std::pair<std::int64_t, std::string>> folders;
  for (const auto& e : storage_().disk().entries()) {
    const auto slash = e.path.rfind('/');
    if (slash == std::string::npos || e.path.substr(1, slash - 1) != below) continue;
    const auto name = e.path.substr(slash + 1);
    if (name == latest_link && e.what == simulated_disk::entry::kind::link) linked = e.target;
    const auto step = step_of_checkpoint_folder(name);
    if (step >= 0 && e.what == simulated_disk::entry::kind::folder)
      folders.emplace_back(step, name);
  }
  std::sort(folders.begin(), folders.end(), [&](const auto& a, const auto& b) {
    const bool a_linked = a.second == linked;
    const bool b_linked = b.second == linked;
    return a_linked != b_linked ? a_linked : a.first > b.first;
  });
  found_checkpoint found;
  for (const auto& [step, name] : folders) {
    const auto path = below + "/" + name;
    try {
      read(path);
      found.path = path;
      return found;
    } catch (const user_error& e) {
      found.refused.push_back({path, e.what()});
    }
  }
  throw user_error(errc::checkpoint, below + ": no good checkpoint there");
}

}  // namespace

std::shared_ptr<const checkpoint_io> disk_checkpoints(
    std::function<const simulated_storage&()> where) {
  return std::make_shared<small_checkpoints>(std::move(where));
}

}  // namespace troupe
