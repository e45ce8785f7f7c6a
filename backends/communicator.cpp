#include "troupe/communicator.hpp"

namespace troupe {

std::size_t size_of(dtype type) {
  switch (type) {
    case dtype::u8:
    case dtype::i8:
    case dtype::boolean: return 1;
    case dtype::i16:
    case dtype::f16:
    case dtype::bf16: return 2;
    case dtype::i32:
    case dtype::f32: return 4;
    case dtype::i64:
    case dtype::f64:
    case dtype::c64: return 8;
    case dtype::c128: return 16;
  }
  throw internal_error("size_of: unknown dtype");
}

std::string_view to_string(dtype type) {
  switch (type) {
    case dtype::u8: return "uint8";
    case dtype::i8: return "int8";
    case dtype::i16: return "int16";
    case dtype::i32: return "int32";
    case dtype::i64: return "int64";
    case dtype::f16: return "float16";
    case dtype::bf16: return "bfloat16";
    case dtype::f32: return "float32";
    case dtype::f64: return "float64";
    case dtype::boolean: return "bool";
    case dtype::c64: return "complex64";
    case dtype::c128: return "complex128";
  }
  return "unknown";
}

std::string_view to_string(reduction operation) {
  switch (operation) {
    case reduction::sum: return "sum";
    case reduction::mean: return "mean";
    case reduction::min: return "min";
    case reduction::max: return "max";
    case reduction::product: return "product";
  }
  return "unknown";
}

work_ptr communicator::work_together(std::string_view label, const void*, std::size_t,
                                     shared_body) {
  throw internal_error("work_together \"" + std::string{label} + "\": the ranks of " +
                       std::string{name()} + " share no memory");
}

device_event_ptr work::on_device() {
  wait();
  return nullptr;
}

std::shared_ptr<communicator> host_collectives(const std::shared_ptr<communicator>& world) {
  auto* const of_devices = dynamic_cast<device_collectives*>(world.get());
  return of_devices ? std::shared_ptr<communicator>{world, &of_devices->on_host()} : world;
}

bool carries(const communicator& world, std::string_view accelerator) {
  const auto* const of_devices = dynamic_cast<const device_collectives*>(&world);
  return of_devices && of_devices->memory_of() == accelerator;
}

}  // namespace troupe
