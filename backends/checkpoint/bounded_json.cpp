#include "backends/checkpoint/bounded_json.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <set>
#include <stdexcept>
#include <string>
#include <vector>

namespace troupe {

namespace {

using nlohmann::json;

// Checks the text before any object is built from it. (The library's own callback parser takes time
// quadratic in the length of an array of objects.)
class bounds_check : public nlohmann::json_sax<json> {
public:
  explicit bounds_check(const json_limits& limits) : limits_(limits) {}

  std::string why;

  bool null() override { return count(); }
  bool boolean(bool) override { return count(); }
  bool number_integer(number_integer_t) override { return count(); }
  bool number_unsigned(number_unsigned_t) override { return count(); }
  bool number_float(number_float_t, const string_t&) override { return count(); }
  bool string(string_t&) override { return count(); }
  bool binary(binary_t&) override { return count(); }
  bool start_object(std::size_t) override { return open(); }
  bool start_array(std::size_t) override { return open(); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& text) override {
    if (!members_.back().insert(text).second) {
      why = fmt::format("has the member \"{:.120}\" twice", text);
      return false;
    }
    return count();
  }

  bool parse_error(std::size_t position, const std::string&, const json::exception&) override {
    // The library's own text may quote the file at any length.
    why = fmt::format("is not JSON at its byte {}", position);
    return false;
  }

private:
  bool count() {
    if (++values_ > limits_.values) why = fmt::format("has more than {} values", limits_.values);
    return why.empty();
  }
  bool open() {
    members_.emplace_back();
    if (members_.size() > limits_.depth)
      why = fmt::format("is nested deeper than {}", limits_.depth);
    return count();
  }
  bool close() {
    members_.pop_back();
    return true;
  }

  json_limits limits_;
  std::size_t values_ = 0;
  std::vector<std::set<std::string>> members_;  // keys of the open objects, outermost first
};

}  // namespace

nlohmann::json parse_bounded_json(std::string_view text, const json_limits& limits) {
  bounds_check check{limits};
  if (!json::sax_parse(text.begin(), text.end(), &check)) throw std::runtime_error(check.why);
  return json::parse(text.begin(), text.end());
}

void refuse(const std::string& why) { throw std::runtime_error(why); }

}  // namespace troupe
