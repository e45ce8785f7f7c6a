// What our programs ask of jemalloc, which reads this name before main: freed memory is kept. Large
// activations that are freed at each step would be faulted in again (docs/gradients.md has
// figures); the price is that the process's memory does not shrink. Nor does jemalloc read a clock
// then, as it would in the middle of a simulated delivery; for the same reason there is no arena of
// its own for what is huge, which would come to be with the first such allocation.
extern "C" {
const char* malloc_conf = "dirty_decay_ms:-1,muzzy_decay_ms:-1,oversize_threshold:0";
}
