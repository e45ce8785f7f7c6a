#include "tests/conformance/port_cases.hpp"

#include <cstdint>
#include <stdexcept>

#include "tests/support/catch.hpp"

namespace troupe::testing {

std::vector<disagreement_case> disagreements() {
  using memory = std::vector<float>;
  const auto sum = [](communicator& c, memory& m) {
    return c.all_reduce(floats(m), reduction::sum);
  };
  const std::string sum_text = "all_reduce(sum, float32, 10)";
  return {
      {"operation", sum, [](communicator& c, memory& m) { return c.broadcast(floats(m), 0); },
       sum_text, "broadcast(float32, 10 from 0)"},
      {"reduction", sum,
       [](communicator& c, memory& m) { return c.all_reduce(floats(m), reduction::max); }, sum_text,
       "all_reduce(max, float32, 10)"},
      {"dtype of equal size", sum,
       [](communicator& c, memory& m) {
         return c.all_reduce({m.data(), m.size(), dtype::i32}, reduction::sum);
       },
       sum_text, "all_reduce(sum, int32, 10)"},
      {"count", sum,
       [](communicator& c, memory& m) {
         return c.all_reduce({m.data(), 9, dtype::f32}, reduction::sum);
       },
       sum_text, "all_reduce(sum, float32, 9)"},
      {"count and dtype of equal bytes", sum,
       [](communicator& c, memory& m) {
         return c.all_reduce({m.data(), 20, dtype::bf16}, reduction::sum);
       },
       sum_text, "all_reduce(sum, bfloat16, 20)"},
      {"root", [](communicator& c, memory& m) { return c.broadcast(floats(m), 0); },
       [](communicator& c, memory& m) { return c.broadcast(floats(m), 1); },
       "broadcast(float32, 10 from 0)", "broadcast(float32, 10 from 1)"},
      {"label", [](communicator& c, memory&) { return c.barrier("epoch"); },
       [](communicator& c, memory&) { return c.barrier("teardown"); }, "barrier \"epoch\"",
       "barrier \"teardown\""},
      {"kind", [](communicator& c, memory&) { return c.barrier("epoch"); },
       [](communicator& c, memory&) -> work_ptr {
         c.decide(true, decision::all);
         return nullptr;
       },
       "barrier \"epoch\"", "decide(all)"},
  };
}

void check_refusals(communicator& c) {
  const auto world = c.group().world;
  REQUIRE((c.group().rank == 1 && world >= 3));
  std::vector<float> f(static_cast<std::size_t>(world) * 4, 1.0f);
  std::vector<std::int32_t> i(4, 1);
  std::vector<std::uint8_t> flags(4, 1);
  const buffer out = floats(f);
  const auto part = [&](std::size_t at) { return buffer{f.data() + at, 4, dtype::f32}; };
  constexpr std::chrono::nanoseconds no_limit{0};
  using Catch::Contains;
  const auto refused = [](const auto& call, const std::string& text) {
    CHECK_THROWS_AS(call(), std::invalid_argument);
    CHECK_THROWS_WITH(call(), Contains(text));
  };
  refused([&] { c.all_reduce(view(i, dtype::i32), reduction::mean); },
          "all_reduce: int32 has no mean; use sum or convert it to a floating type");
  refused([&] { c.all_reduce(view(flags, dtype::boolean), reduction::product); },
          "bool has no product");
  refused(
      [&] {
        c.all_reduce({f.data(), 2, dtype::c64}, reduction::max);
      },
      "complex64 has no order");
  auto of_device = out;
  of_device.device = 1;
  refused([&] { c.all_reduce(of_device, reduction::sum); }, "carries memory of the host only");
  refused([&] { c.all_gather(part(4), of_device); }, "all_gather: the memory is device 1's");
  refused(
      [&] {
        c.all_reduce({nullptr, 3, dtype::f32}, reduction::sum);
      },
      "data has 3 elements and no memory");
  refused(
      [&] {
        c.all_reduce({f.data(), SIZE_MAX / 2, dtype::f32}, reduction::sum);
      },
      "more than memory can hold");
  refused([&] { c.broadcast({flags.data() + 1, 0 + 1, dtype::f32}, 0); }, "aligned");
  refused([&] { c.broadcast(out, world); }, "root " + std::to_string(world) + " is not among");
  refused([&] { c.broadcast(out, 2, {{0, 1}}); }, "root 2 is not among ranks 0, 1");
  refused([&] { c.all_gather(part(0), out); }, "in may lie in out only at this rank's own piece");
  refused([&] { c.all_gather(part(5), out); }, "in and out overlap");
  refused([&] { c.reduce_scatter(out, part(3), reduction::sum); }, "in and out overlap");
  refused([&] { c.reduce_scatter(out, part(8), reduction::sum); }, "in and out overlap");
  refused(
      [&] {
        c.all_gather({i.data(), 4, dtype::i32}, out);
      },
      "in and out have different types (int32 and float32)");
  refused([&] { c.all_gather({f.data(), 3, dtype::f32}, out); }, "out must have");
  refused([&] { c.reduce_scatter(out, {i.data(), 4, dtype::f32}, reduction{9}); }, "no such");
  refused([&] { c.barrier("x", no_limit, {{1, 0}}); }, "ascending order, each once");
  refused([&] { c.barrier("x", no_limit, {{1, 1}}); }, "ascending order, each once");
  refused([&] { c.barrier("x", no_limit, {{1, world}}); }, "ranks of this world are 0 to");
  refused([&] { c.barrier("x", no_limit, {{0, 2}}); }, "rank 1 is not in it");
}

}  // namespace troupe::testing
