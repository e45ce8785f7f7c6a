// Whether the test is compiled with a sanitizer, which makes it up to ten times as slow: tests that
// repeat a case with many seeds take fewer there.
#pragma once

namespace troupe::testing {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool sanitized = true;
#else
constexpr bool sanitized = false;
#endif

/// With UndefinedBehaviorSanitizer, which goes with AddressSanitizer here, the check of an object's
/// type opens a pipe, and without a free descriptor it reports a good object. Such tests skip.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool needs_descriptors = true;
#else
constexpr bool needs_descriptors = false;
#endif

}  // namespace troupe::testing
