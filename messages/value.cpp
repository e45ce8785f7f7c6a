#include "troupe/value.hpp"

#include <sstream>
#include <utility>

namespace troupe {

namespace {

struct printer {
  std::ostream& out;

  void items(char open, const std::vector<value>& xs, char close) const {
    out << open;
    for (std::size_t i = 0; i < xs.size(); ++i) out << (i ? ", " : "") << xs[i];
    out << close;
  }
  void operator()(std::monostate) const { out << "nothing"; }
  void operator()(bool x) const { out << (x ? "true" : "false"); }
  void operator()(std::int64_t x) const { out << x; }
  void operator()(double x) const { out << x; }
  void operator()(const std::string& x) const { out << '"' << x << '"'; }
  void operator()(const tensor_ptr& x) const { out << (x ? "tensor" : "no tensor"); }
  void operator()(const value_tuple& x) const { items('(', x.items, ')'); }
  void operator()(const value_list& x) const { items('[', x.items, ']'); }
  void operator()(const value_map& x) const {
    out << '{';
    const char* separator = "";
    for (const auto& [key, item] : x.items) {
      out << separator << '"' << key << "\": " << item;
      separator = ", ";
    }
    out << '}';
  }
  void operator()(const value_user& x) const {
    out << "<" << (x.held ? x.held->type().name() : "nothing") << ">";
  }
};

}  // namespace

// Defined here, not defaulted in the class: a value is not complete there, and Clang looks into it.
bool operator==(const value_tuple& a, const value_tuple& b) { return a.items == b.items; }
bool operator==(const value_list& a, const value_list& b) { return a.items == b.items; }
bool operator==(const value_map& a, const value_map& b) { return a.items == b.items; }

std::ostream& operator<<(std::ostream& out, const value& v) {
  std::visit(printer{out}, v.held());
  return out;
}

std::string to_string(const value& v) {
  std::ostringstream out;
  out << v;
  return std::move(out).str();
}

}  // namespace troupe
