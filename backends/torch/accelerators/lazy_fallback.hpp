// Operators that LibTorch's lazy tensors do not know run on the host, one by one. LibTorch 2.13 can
// do this for one thread only: its fallback counts calls in a table without a lock, so that a
// process whose ranks are threads ends with SIGSEGV at times.
#pragma once

namespace troupe {

/// Registers a fallback that any number of threads may use, for all operators that LibTorch's
/// TorchScript backend would run by its own. Once per process, after the backend has started.
/// Operators that a library adds later keep LibTorch's fallback.
void register_lazy_fallback();

}  // namespace troupe
