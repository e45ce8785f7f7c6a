#include "backends/torch/idx.hpp"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include "troupe/failure.hpp"

namespace troupe {

namespace {

/// The largest accepted data set; far above any IDX file in use.
constexpr std::int64_t largest = std::int64_t{1} << 36;
constexpr std::size_t portion = std::size_t{4} << 20;

class idx_file {
public:
  /// `ahead`: bytes that are read and inflated at once; few if only the header is wanted.
  idx_file(const std::string& path, const std::string& fix, unsigned ahead)
      : path_(path), fix_(fix), file_(gzopen(path.c_str(), "rb"), &gzclose) {
    if (!file_) fail(std::strerror(errno));
    gzbuffer(file_.get(), ahead);
  }

  std::vector<std::int64_t> header() {
    std::array<std::uint8_t, 4> magic{};
    exactly(magic);
    if (magic[0] || magic[1] || magic[2] != 8 || magic[3] < 1 || magic[3] > 4)
      fail("it is no IDX file of bytes");
    std::vector<std::int64_t> shape(magic[3]);
    std::int64_t total = 1;
    for (auto& extent : shape) {
      std::array<std::uint8_t, 4> big{};
      exactly(big);
      extent = (std::int64_t{big[0]} << 24) | (big[1] << 16) | (big[2] << 8) | big[3];
      if (__builtin_mul_overflow(total, extent, &total) || total > largest)
        fail("its header speaks of more than 64 GiB");
    }
    return shape;
  }

  std::vector<std::uint8_t> elements(std::size_t count) {
    std::vector<std::uint8_t> bytes;
    while (bytes.size() < count) {
      const auto begin = bytes.size();
      // Doubling keeps copies few. A wrong header costs only the first portion of memory.
      bytes.resize(std::min(count, std::max(portion, 2 * begin)));
      const auto got = some(bytes.data() + begin, bytes.size() - begin);
      if (begin + got < bytes.size())
        fail(fmt::format("it ends after {} of {} elements", begin + got, count));
    }
    std::uint8_t more = 0;
    if (some(&more, 1) != 0) fail(fmt::format("it goes on behind its {} elements", count));
    return bytes;
  }

  [[noreturn]] void fail(const std::string& why) const {
    throw user_error(errc::bad_configuration, fmt::format("{}: {}; {}", path_, why, fix_));
  }

private:
  template <std::size_t Size>
  void exactly(std::array<std::uint8_t, Size>& out) {
    if (some(out.data(), Size) != Size) fail("it ends within its header");
  }
  std::size_t some(std::uint8_t* out, std::size_t size) {
    std::size_t done = 0;
    while (done < size) {
      const auto part = static_cast<unsigned>(std::min<std::size_t>(size - done, 1U << 30));
      const int got = gzread(file_.get(), out + done, part);
      int code = Z_OK;
      const char* text = gzerror(file_.get(), &code);
      if (got < 0 || (code != Z_OK && code != Z_STREAM_END && code != Z_BUF_ERROR))
        fail(fmt::format("it is damaged ({})", code == Z_ERRNO ? std::strerror(errno) : text));
      if (got == 0) break;
      done += static_cast<std::size_t>(got);
    }
    return done;
  }

  std::string path_, fix_;
  std::unique_ptr<gzFile_s, int (*)(gzFile)> file_;
};

}  // namespace

std::vector<std::int64_t> read_idx_shape(const std::string& path, const std::string& fix) {
  return idx_file{path, fix, 1U << 10}.header();
}

std::vector<std::uint8_t> read_idx(const std::string& path, const std::vector<std::int64_t>& shape,
                                   const std::string& fix) {
  idx_file file{path, fix, 1U << 18};
  if (file.header() != shape) file.fail("its extents are not those expected");
  std::size_t count = 1;
  for (const auto extent : shape) count *= static_cast<std::size_t>(extent);
  return file.elements(count);
}

}  // namespace troupe
