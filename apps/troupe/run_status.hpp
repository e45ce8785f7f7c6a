// How a run stands, from its program while that lives, and from its files.
#pragma once

#include "apps/troupe/console.hpp"
#include "apps/troupe/run_files.hpp"

#include <nlohmann/json_fwd.hpp>

#include <string>

namespace troupe::program {

/// The object of `troupe status --json`. Waits at most 10 s for the program; `note` gets what could
/// not be read.
nlohmann::ordered_json status_object(const std::string& run, const note_taker& note);
/// Prints such an object as text.
void show_status(const nlohmann::ordered_json& all, console& screen);

/// Names the host on which the program of such an object runs, as `other_host`.
std::string text_of_other_host(const nlohmann::ordered_json& all);

/// A number or a word of an object that may come from any program; `?` if it is not there.
std::string plain(const nlohmann::ordered_json& object, const char* name);

}  // namespace troupe::program
