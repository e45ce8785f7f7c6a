// The only header through which tests include Catch2. It must be the last include of every test:
// LibTorch may define macros of the same names, which would turn a failing check into an abort.
#pragma once

#if __has_include(<c10/util/Logging.h>)
#include <c10/util/Logging.h>  // first, or a source further down in the same unit brings them back
#endif

#undef CHECK
#undef CHECK_FALSE
#undef REQUIRE
#undef FAIL
#undef INFO
#undef WARN

#include <catch2/catch.hpp>
