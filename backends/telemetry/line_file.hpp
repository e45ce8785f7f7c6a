// A text file that is appended to line by line. No added line is lost if the program crashes.
#pragma once

#include <string>
#include <string_view>

namespace troupe {

/// Each `add` is one write to the kernel: nothing waits in this process, so a crash loses nothing
/// (a power cut may). Not thread-safe.
class line_file {
public:
  enum class start { fresh, append };

  /// Appending first removes a partial last line, which a crash left. Throws user_error
  /// (bad_configuration) that names `path` and the fix if the file cannot be opened.
  line_file(std::string path, start how);
  ~line_file();
  line_file(const line_file&) = delete;
  line_file& operator=(const line_file&) = delete;

  /// Adds `text`, which ends its own lines. Throws std::system_error naming the path (a full disk);
  /// nothing of `text` is in the file then, and a later call may succeed.
  void add(std::string_view text);
  const std::string& path() const { return path_; }

private:
  std::string path_;
  int file_ = -1;
};

/// The content of a text file. Throws user_error (bad_configuration) that names the file if it
/// cannot be read.
std::string read_text_file(const std::string& path);
/// Replaces `path` by `text`, by a temporary file beside it and a rename: a reader sees the old or
/// the new, never a part. Throws user_error (bad_configuration) naming the path and the fix.
void replace_text_file(const std::string& path, std::string_view text);

}  // namespace troupe
