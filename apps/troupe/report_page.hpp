// The page of `troupe report`: apps/page and apps/troupe/report_page, joined at build time.
#pragma once

#include <string_view>

namespace troupe::program {

/// HTML with its style and its scripts. It has one `@TROUPE_DATA@`, where JSON without `<` belongs.
extern const std::string_view report_page;
inline constexpr std::string_view report_data_mark = "@TROUPE_DATA@";

}  // namespace troupe::program
