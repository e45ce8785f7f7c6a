// Goal: written tensors are read back from memory and from a file. The layout lets other readers
// map the file. Tensors that could not be read back are not written.
#include "backends/checkpoint/safetensors.hpp"

#include "backends/checkpoint/safetensors_header.hpp"
#include "tests/support/sample_snapshot.hpp"
#include "tests/support/temporary_folder.hpp"
#include "troupe/failure.hpp"

#include <sys/stat.h>

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;
using Catch::Matchers::Contains;

namespace {

std::string joined(const std::vector<std::shared_ptr<const std::vector<std::byte>>>& chunks) {
  std::string text;
  for (const auto& chunk : chunks)
    text.append(reinterpret_cast<const char*>(chunk->data()), chunk->size());
  return text;
}

tensor_file decoded(const std::string& text) {
  return decode_safetensors(std::as_bytes(std::span{text}), "file");
}

}  // namespace

TEST_CASE("tensors and metadata are read back in order", "[checkpoint]") {
  const auto tensors = sample_snapshot().model;
  const auto text = joined(encode_safetensors(tensors, {{"format", "pt"}, {"", "ü\"\n"}}));
  const auto back = decoded(text);
  CHECK(same_blobs(back.tensors, tensors));
  CHECK(back.metadata == std::map<std::string, std::string>{{"format", "pt"}, {"", "ü\"\n"}});
  CHECK(back.bytes == text.size());

  temporary_folder folder;
  write_text(folder.path() / "x", text);
  const regular_file file{folder.path() / "x"};
  const auto read = read_safetensors(file);
  CHECK(same_blobs(read.tensors, tensors));
  CHECK(read.hash == back.hash);
  CHECK(read.hash == file.hash());
}

TEST_CASE("a file without tensors is valid", "[checkpoint]") {
  const auto text = joined(encode_safetensors({}));
  CHECK(text == std::string("\10\0\0\0\0\0\0\0{}      ", 16));
  CHECK(decoded(text).tensors.empty());
}

TEST_CASE("encoding shares the tensors' bytes instead of copying them", "[checkpoint]") {
  const auto tensors = sample_snapshot().model;
  const auto chunks = encode_safetensors(tensors);
  for (const auto& tensor : tensors)
    CHECK((tensor.bytes->empty() ||
           std::find(chunks.begin(), chunks.end(), tensor.bytes) != chunks.end()));
}

TEST_CASE("every tensor is aligned for its dtype", "[checkpoint]") {
  const auto tensors = sample_snapshot().model;
  const auto text = joined(encode_safetensors(tensors));
  const auto bytes = std::as_bytes(std::span{text});
  const auto length = safetensors_header_length(bytes.first<8>(), text.size());
  CHECK(length % 8 == 0);
  const auto header = parse_safetensors_header(text.substr(8, length), text.size() - 8 - length);
  for (const auto& tensor : header.tensors)
    CHECK(tensor.begin % safetensors_element_size(tensor.dtype) == 0);
}

TEST_CASE("tensors that could not be read back are refused when written", "[checkpoint]") {
  const auto fine = blob<float>("a", "F32", {2}, {1, 2});
  const auto writing = [](std::vector<tensor_blob> tensors) {
    return [tensors] { encode_safetensors(tensors); };
  };
  const auto refusal = [](const auto& write) -> std::string {
    try {
      write();
    } catch (const user_error& e) {
      CHECK(e.code() == errc::checkpoint);
      return e.what();
    }
    return "written";
  };
  CHECK_THAT(refusal(writing({fine, fine})), Contains("\"a\" is there twice"));
  auto odd = fine;
  odd.dtype = "F31";
  CHECK_THAT(refusal(writing({odd})), Contains("unknown dtype") && Contains("F31"));
  odd = fine;
  odd.shape = {3};
  CHECK_THAT(refusal(writing({odd})), Contains("has 8 bytes, its dtype and shape need 12"));
  odd = fine;
  odd.shape = {-1, -2};
  CHECK_THAT(refusal(writing({odd})), Contains("negative dimension"));
  odd = fine;
  odd.name = "\xff";
  CHECK_THAT(refusal(writing({odd})), Contains("not UTF-8"));
  odd = fine;
  odd.name = "__metadata__";
  CHECK_THAT(refusal(writing({odd})), Contains("__metadata__"));
  odd = fine;
  odd.shape.assign(65, 1);
  CHECK(refusal(writing({odd})) != "written");
  odd = fine;
  odd.bytes = nullptr;
  CHECK_THAT(refusal(writing({odd})), Contains("has no bytes"));
}

TEST_CASE("only regular files are opened", "[checkpoint]") {
  temporary_folder folder;
  const auto there = folder.path() / "there";
  write_text(there, joined(encode_safetensors({})));
  CHECK_THROWS_AS(regular_file{folder.path() / "missing"}, user_error);
  CHECK_THROWS_AS(regular_file{folder.path()}, user_error);
  REQUIRE(::mkfifo((folder.path() / "pipe").c_str(), 0600) == 0);
  CHECK_THROWS_AS(regular_file{folder.path() / "pipe"}, user_error);
  std::filesystem::create_symlink(there, folder.path() / "link");
  CHECK(regular_file{folder.path() / "link"}.size() == 16);
  CHECK_THROWS_AS((regular_file{folder.path() / "link", regular_file::links::refuse}), user_error);
}

TEST_CASE("a file that was truncated after opening is an error", "[checkpoint]") {
  temporary_folder folder;
  const auto path = folder.path() / "x";
  write_text(path, joined(encode_safetensors(sample_snapshot().model)));
  const regular_file file{path};
  std::filesystem::resize_file(path, file.size() - 1);
  CHECK_THROWS_WITH(read_safetensors(file), Contains("more was expected"));
}
