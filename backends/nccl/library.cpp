#include "backends/nccl/library.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <string_view>

namespace troupe::nccl {

namespace {

std::shared_ptr<void> open_library(const std::vector<std::string>& folders, const char* name,
                                   std::string& why) {
  std::vector<std::string> places;
  for (const auto& folder : folders) places.push_back(folder + "/" + name);
  places.emplace_back(name);
  // Where the headers were found: pip's packages are in none of the system's places.
  for (const auto* folder : {TROUPE_NCCL_LIBRARIES, TROUPE_CUDA_LIBRARIES})
    places.push_back(std::string{folder} + "/" + name);
  for (const auto& place : places)
    if (auto* found = ::dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL))
      return {found, [](void* opened) { ::dlclose(opened); }};
  const auto* reason = ::dlerror();
  why = reason ? reason : fmt::format("{} cannot be loaded", name);
  return nullptr;
}

template <class Function>
bool find(const std::shared_ptr<void>& in, const char* name, Function& into, std::string& why) {
  into = reinterpret_cast<Function>(::dlsym(in.get(), name));
  if (!into) why = fmt::format("the library has no {}: another version is needed", name);
  return into != nullptr;
}

bool find_nccl(const std::shared_ptr<void>& in, library& f, std::string& why) {
  return find(in, "ncclGetUniqueId", f.get_unique_id, why) &&
         find(in, "ncclCommInitRankConfig", f.comm_init, why) &&
         find(in, "ncclCommFinalize", f.comm_finalize, why) &&
         find(in, "ncclCommDestroy", f.comm_destroy, why) &&
         find(in, "ncclCommAbort", f.comm_abort, why) &&
         find(in, "ncclCommGetAsyncError", f.comm_get_async_error, why) &&
         find(in, "ncclAllReduce", f.all_reduce, why) &&
         find(in, "ncclBroadcast", f.broadcast, why) &&
         find(in, "ncclAllGather", f.all_gather, why) &&
         find(in, "ncclReduceScatter", f.reduce_scatter, why) &&
         find(in, "ncclMemAlloc", f.mem_alloc, why) && find(in, "ncclMemFree", f.mem_free, why) &&
         find(in, "ncclGetErrorString", f.error_text, why) &&
         find(in, "ncclGetLastError", f.last_error, why);
}

bool find_cuda(const std::shared_ptr<void>& in, library& f, std::string& why) {
  return find(in, "cudaGetDeviceCount", f.device_count, why) &&
         find(in, "cudaSetDevice", f.set_device, why) &&
         find(in, "cudaDeviceGetPCIBusId", f.bus_id, why) &&
         find(in, "cudaStreamCreateWithFlags", f.stream_create, why) &&
         find(in, "cudaStreamDestroy", f.stream_destroy, why) &&
         find(in, "cudaStreamWaitEvent", f.stream_wait_event, why) &&
         find(in, "cudaStreamQuery", f.stream_query, why) &&
         find(in, "cudaEventCreateWithFlags", f.event_create, why) &&
         find(in, "cudaEventDestroy", f.event_destroy, why) &&
         find(in, "cudaEventRecord", f.event_record, why) &&
         find(in, "cudaEventQuery", f.event_query, why) &&
         find(in, "cudaEventSynchronize", f.event_synchronize, why) &&
         find(in, "cudaPointerGetAttributes", f.pointer_attributes, why) &&
         find(in, "cudaGetErrorString", f.cuda_error_text, why);
}

}  // namespace

loaded load(const std::vector<std::string>& folders) {
  // The runtime of the headers' major version: the layout of what it fills may differ in others.
  const auto runtime = fmt::format("libcudart.so.{}", CUDART_VERSION / 1000);
  auto functions = std::make_shared<library>();
  std::string why;
  const auto cuda = open_library(folders, runtime.c_str(), why);
  if (!cuda || !find_cuda(cuda, *functions, why)) return {nullptr, why};
  // Loaded second: it is large, and useless without a GPU.
  if (auto none = no_device(*functions); !none.empty()) return {nullptr, none};
  const auto nccl = open_library(folders, "libnccl.so.2", why);
  if (!nccl || !find_nccl(nccl, *functions, why)) return {nullptr, why};
  functions->open = {cuda, nccl};
  return {functions, {}};
}

std::string no_device(const library& functions) {
  int count = 0;
  const auto error = functions.device_count(&count);
  if (error != cudaSuccess)
    return fmt::format("there is no GPU that CUDA can use: {}", functions.cuda_error_text(error));
  return count > 0 ? "" : "there is no GPU in this machine";
}

}  // namespace troupe::nccl
