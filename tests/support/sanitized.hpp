// Whether the test is compiled with a sanitizer, which makes it up to ten times as slow: tests that
// repeat a case with many seeds take fewer there.
#pragma once

namespace troupe::testing {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool sanitized = true;
#else
constexpr bool sanitized = false;
#endif

}  // namespace troupe::testing
