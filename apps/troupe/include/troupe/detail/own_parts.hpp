// What a program of a user's own adds to the built-in models and data sets.
#pragma once

#include "troupe/value.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace troupe {

struct module;
class data_module;
struct torch_plugins;

namespace detail {

// A setting that a model or a data set declares: a field of a struct.
struct declared_setting {
  enum class type : std::uint8_t { boolean, integer, number, text, integers, texts };
  std::string name;
  type is = type::text;
  value fallback;
  // Integers, also those in a list.
  std::int64_t least = 0, most = 0;
};

// A model or a data set of a program.
template <class Made>
struct own_part {
  std::string name;
  std::string summary;
  std::vector<declared_setting> settings;
  // Takes the settings that are set.
  std::function<std::shared_ptr<Made>(const value_map&)> make;
};

struct own_parts {
  std::vector<own_part<module>> models;
  std::vector<own_part<data_module>> data;
  std::function<void(torch_plugins&)> change_plugins;
};

}  // namespace detail

}  // namespace troupe
