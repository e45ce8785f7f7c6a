// The functions of NCCL and of the CUDA runtime that are used, as a table. It is filled from the
// libraries at run time, or by a test.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <memory>
#include <string>
#include <vector>

namespace troupe::nccl {

struct library {
  decltype(&::ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&::ncclCommInitRankConfig) comm_init = nullptr;
  decltype(&::ncclCommFinalize) comm_finalize = nullptr;
  decltype(&::ncclCommDestroy) comm_destroy = nullptr;
  decltype(&::ncclCommAbort) comm_abort = nullptr;
  decltype(&::ncclCommGetAsyncError) comm_get_async_error = nullptr;
  decltype(&::ncclAllReduce) all_reduce = nullptr;
  decltype(&::ncclBroadcast) broadcast = nullptr;
  decltype(&::ncclAllGather) all_gather = nullptr;
  decltype(&::ncclReduceScatter) reduce_scatter = nullptr;
  decltype(&::ncclMemAlloc) mem_alloc = nullptr;
  decltype(&::ncclMemFree) mem_free = nullptr;
  decltype(&::ncclGetErrorString) error_text = nullptr;
  decltype(&::ncclGetLastError) last_error = nullptr;

  decltype(&::cudaGetDeviceCount) device_count = nullptr;
  decltype(&::cudaSetDevice) set_device = nullptr;
  decltype(&::cudaDeviceGetPCIBusId) bus_id = nullptr;
  decltype(&::cudaStreamCreateWithFlags) stream_create = nullptr;
  decltype(&::cudaStreamDestroy) stream_destroy = nullptr;
  decltype(&::cudaStreamWaitEvent) stream_wait_event = nullptr;
  decltype(&::cudaStreamQuery) stream_query = nullptr;
  decltype(&::cudaEventCreateWithFlags) event_create = nullptr;
  decltype(&::cudaEventDestroy) event_destroy = nullptr;
  decltype(&::cudaEventRecord) event_record = nullptr;
  decltype(&::cudaEventQuery) event_query = nullptr;
  decltype(&::cudaEventSynchronize) event_synchronize = nullptr;
  decltype(&::cudaPointerGetAttributes) pointer_attributes = nullptr;
  decltype(&::cudaGetErrorString) cuda_error_text = nullptr;

  /// Keeps the libraries open.
  std::vector<std::shared_ptr<void>> open;
};

/// The libraries, or why they cannot be used here.
struct loaded {
  std::shared_ptr<const library> functions;
  std::string why;
};
loaded load(const std::vector<std::string>& folders);
/// Empty when there is a GPU.
std::string no_device(const library& functions);

}  // namespace troupe::nccl
