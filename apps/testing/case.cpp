#include "apps/testing/case.hpp"

#include <elf.h>
#include <fmt/format.h>
#include <link.h>

#include <algorithm>
#include <cstring>
#include <map>

namespace troupe::testing {

namespace {

// Returns the build id that the linker put into the program, in hexadecimal.
std::string id_in(const unsigned char* at, std::size_t bytes) {
  constexpr auto aligned = [](std::size_t n) { return (n + 3) & ~std::size_t{3}; };
  ElfW(Nhdr) note;
  while (bytes >= sizeof note) {
    std::memcpy(&note, at, sizeof note);
    const auto whole = sizeof note + aligned(note.n_namesz) + aligned(note.n_descsz);
    if (whole > bytes) break;
    const auto* name = at + sizeof note;
    if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && std::memcmp(name, "GNU", 4) == 0) {
      std::string text;
      for (std::size_t i = 0; i < note.n_descsz; ++i)
        text += fmt::format("{:02x}", name[aligned(note.n_namesz) + i]);
      return text;
    }
    at += whole;
    bytes -= whole;
  }
  return {};
}

bool met(const std::string& what, const run_report& by) {
  for (std::size_t f = 0; f < fault_kinds; ++f)
    if (to_string(static_cast<fault>(f)) == what) return by.faults[f] > 0;
  std::map<std::string, std::uint64_t> marks;
  add_marks(marks, by);
  return marks[what] > 0;
}

}  // namespace

std::string build_id() {
  std::string id;
  // The first object that is reported is the program itself.
  dl_iterate_phdr(
      [](dl_phdr_info* object, std::size_t, void* into) {
        for (ElfW(Half) i = 0; i < object->dlpi_phnum; ++i) {
          const auto& part = object->dlpi_phdr[i];
          if (part.p_type != PT_NOTE) continue;
          const auto* at = reinterpret_cast<const unsigned char*>(object->dlpi_addr + part.p_vaddr);
          if (auto found = id_in(at, part.p_memsz); !found.empty())
            *static_cast<std::string*>(into) = std::move(found);
        }
        return 1;
      },
      &id);
  return id;
}

run_case case_of(const run_report& report, const variant& what) {
  run_case c;
  c.what = what;
  c.seed = report.seed;
  if (!report.violations.empty()) c.expect = report.violations.front().oracle;
  c.build = build_id();
  return c;
}

run_report replay(const run_case& what, modular_reference& reference) {
  auto from = what.taken ? choices::of_list(what.seed, *what.taken) : choices::of_seed(what.seed);
  return run_job(what.what.job, what.what.plan, std::move(from), reference);
}

std::vector<std::string> remarks(const run_case& what, const run_report& replayed) {
  std::vector<std::string> all;
  const auto here = build_id();
  if (!what.build.empty() && what.build != here)
    all.push_back(fmt::format(
        "the case was recorded by build {:.12}, this is build {:.12}: it may behave differently",
        what.build, here.empty() ? "unknown" : here));
  if (!what.expect.empty() && !replayed.violates(what.expect))
    all.push_back(fmt::format("\"{}\", which the case expects to be violated, was not violated",
                              what.expect));
  for (const auto& m : what.meets)
    if (!met(m, replayed)) all.push_back(fmt::format("the case should meet \"{}\" but did not", m));
  return all;
}

}  // namespace troupe::testing
