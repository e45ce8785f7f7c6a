// A file that the user names for a command to write.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace troupe::program {

/// Whether `write_output` may write to `path` as it is now. Throws user_error (bad_configuration)
/// naming the path and the fix: what is there is no regular file (a folder, a device, a pipe, a
/// link), or it is a file and `replace` is false.
void check_output(const std::string& path, bool replace);

/// Writes `pieces`, one after the other, to the file `path`, as a whole: into a new file beside it,
/// which takes its name when every byte is on the disk. What `check_output` refuses is refused here
/// again, and nothing at `path` changes when it throws. Throws user_error (bad_configuration).
void write_output(const std::string& path, const std::vector<std::string_view>& pieces,
                  bool replace);

}  // namespace troupe::program
