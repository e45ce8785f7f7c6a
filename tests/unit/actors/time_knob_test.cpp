// Goal: one setting determines every deadline, and no inner deadline outlasts its outer one.
#include "actors/time_knob.hpp"

#include "troupe/failure.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace std::chrono_literals;

namespace {

std::string refusal(const time_knob& knob) {
  try {
    check(knob);
  } catch (const user_error& e) {
    CHECK(e.code() == errc::bad_configuration);
    return e.what();
  }
  return {};
}

}  // namespace

TEST_CASE("every deadline is derived from time.detect and time.hook_limit", "[time_knob]") {
  const auto usual = derive({});
  CHECK(usual.detect == 500ms);
  CHECK(usual.tick == 500ms);
  CHECK(usual.settle == 500ms);
  CHECK(usual.form == 10s);
  CHECK(usual.close == 2s);
  CHECK(usual.teardown == 2s);
  CHECK(usual.hook_limit == 300s);
  CHECK(usual.form_most == 2400s);
  CHECK(usual.collective == 301s);
  CHECK(usual.flush == 300s);
  CHECK(derive({10s, 0s}).form == 40s);
  CHECK(derive({10s, 15s}).hook_limit == 15s);
  CHECK(derive({10s, 15s}).collective == 35s);
}

TEST_CASE("settings whose inner deadline would outlast the outer one are refused", "[time_knob]") {
  for (const auto detect : {1ms, 20ms, 500ms, 3600000ms}) {
    CHECK(refusal({detect, 0s}).empty());
    CHECK(refusal({detect, detect + 1ns}).empty());
    CHECK(refusal({detect, detect}).find("time.hook_limit_seconds") != std::string::npos);
  }
  CHECK(refusal({0s, 0s}).find("time.detect_seconds is 0,") != std::string::npos);
  CHECK(refusal({2h, 0s}).find("time.detect_seconds") != std::string::npos);
  CHECK(refusal({-1s, 0s}).find("time.detect_seconds") != std::string::npos);
  CHECK(refusal({500ms, -1s}).find("time.hook_limit_seconds is -1,") != std::string::npos);
  CHECK(refusal({500ms, 9000h}).find("time.hook_limit_seconds") != std::string::npos);
}
