// The configuration as text: TOML to read and to run again, JSON for programs.
#pragma once

#include "apps/troupe/settings.hpp"

#include <string>

namespace troupe::program {

/// All settings as TOML. With `origins` each line has the source of its value, and settings that
/// are not set are comments.
std::string printed(const settings& values, bool origins);
/// The content of a run's config.toml: the job's settings only, so that it can be run again.
std::string saved_configuration(const settings& values);
/// `{"schema":"troupe.config/1","settings":{"ranks":{"value":2,"from":"flag --ranks"},...}}`
std::string printed_json(const settings& values);
/// A JSON Schema (draft 2020-12) of the TOML file.
std::string json_schema(const schema& all);

}  // namespace troupe::program
