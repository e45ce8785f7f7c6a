// Options for jemalloc, which reads this name before main. Freed memory is kept: otherwise large
// activations, which are freed at each step, would be faulted in again (docs/gradients.md has
// figures). The price is that the process's memory does not shrink. These options also keep
// jemalloc from reading a clock or creating an arena for huge blocks at their first allocation:
// either could happen in the middle of a simulated delivery.
extern "C" {
const char* malloc_conf = "dirty_decay_ms:-1,muzzy_decay_ms:-1,oversize_threshold:0";
}
