#include "tests/unit/actors/checkpoint_drive.hpp"

#include "backends/checkpoint/safetensors_io.hpp"
#include "tests/support/sample_snapshot.hpp"

#include <sstream>
#include <stdexcept>
#include <utility>

namespace troupe::testing {

using namespace checkpointing;

namespace {

// Translates an operation of the machine into one of the storage port.
struct port_operation {
  const std::vector<checkpoint_file>& files;

  storage_op operator()(const write_file& x) const {
    return storage_ops::write{x.path, files.at(x.file).chunks};
  }
  template <class Same>
  storage_op operator()(const Same& x) const {
    return x;
  }
};

}  // namespace

checkpoint_drive::checkpoint_drive(checkpoint_policy policy, simulated_disk on,
                                   std::optional<std::int64_t> resumed)
    : machine({std::move(policy), "run/checkpoints", "manifest.json", resumed}),
      disk(std::move(on)),
      io(safetensors_checkpoints({})) {
  feed(begin{});
}

void checkpoint_drive::offer(std::int64_t step, double loss, bool must, std::uint64_t generation) {
  feed(committed{generation_id{generation}, step});
  offer_early(step, loss, must, generation);
}

void checkpoint_drive::offer_early(std::int64_t step, double loss, bool must,
                                   std::uint64_t generation) {
  held[++tickets] = sample_snapshot(step, loss);
  feed(offered{tickets, step, generation_id{generation}, must, true, loss});
}

void checkpoint_drive::feed(const event& what) {
  for (const auto& a : machine.on(what)) take(a);
}

void checkpoint_drive::take(const action& a) {
  if (const auto* x = std::get_if<open>(&a)) {
    files = io->encode(held.at(x->ticket));
    opened e;
    for (const auto& file : files) e.files.push_back(file.name);
    feed(e);
  } else if (const auto* x = std::get_if<store>(&a)) {
    if (in_flight) throw std::logic_error("two operations in flight");
    in_flight = *x;
  } else {
    if (const auto* x = std::get_if<drop>(&a); x && held.erase(x->ticket) != 1)
      throw std::logic_error("dropped what was not held");
    said.push_back(a);
  }
}

std::optional<storage_op> checkpoint_drive::next() const {
  if (!in_flight) return std::nullopt;
  return std::visit(port_operation{files}, in_flight->what);
}

bool checkpoint_drive::step() {
  if (!in_flight) return false;
  answered e;
  e.number = in_flight->number;
  if (fails && fails(done)) {
    e.text = "no space left on device";
  } else {
    const auto result = disk.perform(*next());
    e.text = result.text;
    e.missing = result.error == std::errc::no_such_file_or_directory;
    e.names = result.names;
    if (result.bytes) {
      const auto monitor = monitored_by("val/loss", io->facts(*result.bytes, "manifest").loop);
      e.has_monitor = monitor.has_value();
      e.monitor = monitor.value_or(0);
    }
  }
  ++done;
  in_flight.reset();
  feed(e);
  return true;
}

std::vector<std::int64_t> checkpoint_drive::written() const {
  std::vector<std::int64_t> steps;
  for (const auto& a : said)
    if (const auto* x = std::get_if<checkpointing::written>(&a)) steps.push_back(x->step);
  return steps;
}

std::vector<failed> checkpoint_drive::failures() const {
  std::vector<failed> all;
  for (const auto& a : said)
    if (const auto* x = std::get_if<failed>(&a)) all.push_back(*x);
  return all;
}

std::vector<std::string> checkpoint_drive::entries() const {
  auto copy = disk;
  return copy.perform(storage_ops::list{"run/checkpoints"}).names;
}

checkpoint_policy keep(std::int32_t last, std::int32_t best) {
  checkpoint_policy policy;
  policy.keep_last = last;
  policy.keep_best = best;
  return policy;
}

}  // namespace troupe::testing
