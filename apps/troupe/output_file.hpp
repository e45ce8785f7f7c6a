// A file that the user names for a command to write.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace troupe::program {

/// Checks that `write_output` may write to `path` as it is now. Throws user_error
/// (bad_configuration) with the path and the fix if `path` is not a regular file (a folder, a
/// device, a pipe, a link), or if it is a file and `replace` is false.
void check_output(const std::string& path, bool replace);

/// Checks that the file `path` may be replaced without `--force`, because it is empty or begins
/// with `head`, as each file that `flag` has written. Anything but a regular file is accepted.
/// Throws user_error (bad_configuration).
void check_is_like(std::string_view flag, const std::string& path, std::string_view head);

/// Writes `pieces`, one after the other, to the file `path`, atomically: into a new file in the
/// same folder, which is renamed when every byte is on the disk. Repeats the checks of
/// `check_output`. Nothing at `path` changes when it throws. Throws user_error (bad_configuration).
void write_output(const std::string& path, const std::vector<std::string_view>& pieces,
                  bool replace);

}  // namespace troupe::program
