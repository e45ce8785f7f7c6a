// The only way to reach Catch2; the last include of every test. LibTorch may bring macros of the
// same names, which would turn a failing check into an abort.
#pragma once

#undef CHECK
#undef CHECK_FALSE
#undef REQUIRE
#undef FAIL
#undef INFO
#undef WARN

#include <catch2/catch.hpp>
