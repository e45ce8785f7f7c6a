// Goal: data sets are read exactly as documented. Missing or damaged data are errors that name the
// file and a remedy.
#include <ATen/Functions.h>
#include <unistd.h>
#include <zlib.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "backends/torch/characters.hpp"
#include "backends/torch/data_catalog.hpp"
#include "troupe/detail/tensor.hpp"
#include "troupe/failure.hpp"

#include "tests/support/catch.hpp"

namespace troupe {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;

/// A folder with four IDX files, which a test may then damage.
class folder {
public:
  folder() {
    auto name = (fs::temp_directory_path() / "troupe-idx-XXXXXX").string();
    if (!mkdtemp(name.data())) throw std::runtime_error("no temporary folder");
    path_ = name;
    for (const auto* half : {"train", "t10k"}) {
      write(std::string{half} + "-images-idx3-ubyte", header({3, 28, 28}) + pixels(3));
      write(std::string{half} + "-labels-idx1-ubyte", header({3}) + std::string("\x01\x00\x09", 3));
    }
  }
  ~folder() { fs::remove_all(path_); }
  std::string path() const { return path_.string(); }
  void write(const std::string& name, const std::string& content) const {
    std::ofstream{path_ / name, std::ios::binary} << content;
  }
  void pack(const std::string& name, const std::string& content, std::size_t keep) const {
    const auto file = path_ / (name + ".gz");
    gzFile out = gzopen(file.c_str(), "wb");
    gzwrite(out, content.data(), static_cast<unsigned>(content.size()));
    gzclose(out);
    if (keep < fs::file_size(file)) fs::resize_file(file, keep);
    remove(name);
  }
  void remove(const std::string& name) const { fs::remove(path_ / name); }

  static std::string header(std::vector<std::uint32_t> shape, char type = 8) {
    std::string bytes{'\0', '\0', type, static_cast<char>(shape.size())};
    for (const auto extent : shape)
      for (const int shift : {24, 16, 8, 0}) bytes += static_cast<char>(extent >> shift);
    return bytes;
  }
  static std::string pixels(int images) {
    std::string bytes;
    for (int i = 0; i < images * 784; ++i) bytes += static_cast<char>(i % 256);
    return bytes;
  }

private:
  fs::path path_;
};

value first_batch(data_module& data, std::vector<std::int64_t> indices = {0, 2}) {
  data.prepare_data();
  data.setup(stage::train);
  return data.train()->get(indices);
}

/// The error text that a user gets for the data at `path`.
std::string complaint(const std::string& path) {
  const auto data = fashion_mnist(path);
  try {
    first_batch(*data);
  } catch (const user_error& error) {
    CHECK(error.code() == errc::bad_configuration);
    return error.what();
  }
  return "no complaint";
}

TEST_CASE("pixels are scaled to the range 0 to 1 and labels are integers") {
  const folder files;
  const auto data = fashion_mnist(files.path());
  const auto batch = first_batch(*data);
  const auto& items = batch.get_if<value_tuple>()->items;
  const auto& images = unboxed(items[0]);
  CHECK(images.sizes() == at::IntArrayRef({2, 1, 28, 28}));
  const auto expected =
      at::arange(3 * 784).remainder(256).to(at::kFloat).div(255).view({3, 1, 28, 28});
  CHECK(at::equal(images, expected.index_select(0, at::tensor({0, 2}))));
  CHECK(at::equal(unboxed(items[1]), at::tensor({1, 9}, at::kLong)));
  const std::vector<std::int64_t> out_of_range{3};
  CHECK_THROWS(data->train()->get(out_of_range));
  CHECK(data->validation().at(0)->size() == 3);
  CHECK(data->test().at(0) == data->validation().at(0));
}

TEST_CASE("missing data are an error that names the folder and a remedy") {
  const folder files;
  files.remove("t10k-labels-idx1-ubyte");
  CHECK_THAT(complaint(files.path()),
             Contains("t10k-labels-idx1-ubyte") && Contains(files.path()) &&
                 Contains("apt-get install dataset-fashion-mnist") && Contains("--data-dir"));
  CHECK_THAT(complaint("/no/such/folder"), Contains("/no/such/folder"));
}

TEST_CASE("damaged data are an error that names the file and the damage") {
  const folder files;
  const std::string images = "train-images-idx3-ubyte", labels = "train-labels-idx1-ubyte";
  const auto good = folder::header({3, 28, 28}) + folder::pixels(3);
  std::string why;
  SECTION("truncated") {
    files.write(images, good.substr(0, 2000)), why = "ends after 1984 of 2352";
  }
  SECTION("truncated in the header") {
    files.write(images, good.substr(0, 9)), why = "ends within its header";
  }
  SECTION("empty") { files.write(images, ""), why = "ends within its header"; }
  SECTION("too long") { files.write(images, good + "x"), why = "goes on behind its 2352"; }
  SECTION("not an IDX file") { files.write(images, "PK\3\4 something else"), why = "no IDX file"; }
  SECTION("float pixels") {
    files.write(images, folder::header({3, 28, 28}, 13)), why = "no IDX file";
  }
  SECTION("images of another size") {
    files.write(images, folder::header({3, 32, 32})), why = "28 x 28";
  }
  SECTION("header claims more images than the file holds") {
    files.write(images, folder::header({80'000'000, 28, 28})), why = "";
    files.write(labels, folder::header({80'000'000}));
  }
  SECTION("header claims impossible extents") {
    files.write(images, folder::header({0xffffffff, 0xffffffff, 0xffffffff})), why = "64 GiB";
  }
  SECTION("truncated archive") { files.pack(images, good, 200), why = images; }
  SECTION("fewer labels than images") {
    files.write(labels, folder::header({2}) + "ab"), why = "extents are not those expected";
  }
  SECTION("label above the last class") {
    files.write(labels, folder::header({3}) + "\1\2\12"), why = "above 9";
  }
  const auto what = complaint(files.path());
  CHECK_THAT(what,
             Contains(files.path()) && Contains("train-") && Contains("apt-get") && Contains(why));
}

TEST_CASE("a flipped bit in an archive is detected") {
  const folder files;
  const std::string images = "train-images-idx3-ubyte";
  files.pack(images, folder::header({3, 28, 28}) + folder::pixels(3), 1 << 20);
  CHECK(complaint(files.path()) == "no complaint");
  std::fstream archive{fs::path{files.path()} / (images + ".gz"),
                       std::ios::binary | std::ios::in | std::ios::out};
  archive.seekg(-8, std::ios::end);  // the checksum
  const auto byte = static_cast<char>(archive.get() ^ 1);
  archive.seekp(-8, std::ios::end);
  archive.put(byte);
  archive.close();
  CHECK_THAT(complaint(files.path()), Contains("damaged") || Contains("ends after"));
}

TEST_CASE("ranks can set up the same data at the same time") {
  const folder files;
  const auto data = fashion_mnist(files.path());
  std::vector<dataset_ptr> seen(4);
  {
    std::vector<std::jthread> ranks;
    for (auto& mine : seen)
      ranks.emplace_back([&] {
        data->setup(stage::train);
        mine = data->train();
      });
  }
  for (const auto& mine : seen) CHECK(mine == seen[0]);
}

TEST_CASE("the Debian package of fashion_mnist has the expected content") {
  const auto data = find_data("fashion_mnist").make({});
  const auto batch = first_batch(*data, {0, 1, 59999});
  const auto& items = batch.get_if<value_tuple>()->items;
  CHECK(data->train()->size() == 60000);
  CHECK(data->test().at(0)->size() == 10000);
  CHECK(at::equal(unboxed(items[1]), at::tensor({9, 0, 5}, at::kLong)));
  CHECK(unboxed(items[0]).max().item<float>() == 1.0f);
}

TEST_CASE("synthetic data depend on their options only") {
  const synthetic_options options{
      .samples = 40, .evaluation = 20, .shape = {3, 2}, .classes = 4, .seed = 5};
  const auto once = first_batch(*synthetic(options), {0, 5, 39});
  const auto again = first_batch(*find_data("synthetic").make({.made_up = options}), {0, 5, 39});
  const auto& a = once.get_if<value_tuple>()->items;
  CHECK(at::equal(unboxed(a[0]), unboxed(again.get_if<value_tuple>()->items[0])));
  CHECK(unboxed(a[0]).sizes() == at::IntArrayRef({3, 3, 2}));
  CHECK(at::equal(unboxed(a[1]), at::tensor({0, 1, 3}, at::kLong)));
  auto other = options;
  other.seed = 6;
  CHECK_FALSE(at::equal(
      unboxed(a[0]),
      unboxed(first_batch(*synthetic(other), {0, 5, 39}).get_if<value_tuple>()->items[0])));
}

TEST_CASE("synthetic samples are normally distributed around the centre of their class") {
  const auto data = synthetic({.samples = 4000, .shape = {8}, .classes = 2, .spread = 0.5});
  std::vector<std::int64_t> of_one_class;
  for (std::int64_t i = 0; i < 4000; i += 2) of_one_class.push_back(i);
  const auto features = unboxed(data->train()->get(of_one_class).get_if<value_tuple>()->items[0]);
  const auto deviation = features.std(0, true);
  CHECK(at::allclose(deviation, at::full({8}, 0.5), 0, 0.03));
}

TEST_CASE("characters of a text: ASCII as it is, other letters as one question mark") {
  const auto back = [](std::string_view text) {
    return characters::text_of(characters::numbers_of(text));
  };
  CHECK(back("a b\n~!") == "a b\n~!");
  CHECK(back("x\ty\r\n\x07z") == "x y\nz");
  CHECK(back("gr\xC3\xBC\xC3\x9F \xE2\x82\xAC \xF0\x9F\x99\x82.") == "gr?? ? ?.");
  CHECK(characters::numbers_of("\n ~") == std::vector<std::uint8_t>{0, 1, 95});
}

TEST_CASE("a text is read in windows, each with the characters that follow") {
  const folder here;
  std::string text;
  for (int i = 0; i < 64 * 321; ++i) text += static_cast<char>('A' + i % 58);
  text += 'z';
  fs::create_directory(here.path() + "/texts");
  here.write("texts/b.txt", text.substr(1000));
  here.write("texts/a", text.substr(0, 1000));
  here.write("texts/a.dat", "an index");
  here.write("texts/.DS_Store", "of a file manager");
  here.write("texts/.a.txt", "hidden");
  const auto data = text_data(here.path() + "/texts");
  data->prepare_data();
  data->setup(stage::train);
  CHECK(data->train()->size() == 289);  // of 321 windows
  REQUIRE(data->validation().size() == 1);
  CHECK(data->validation().front()->size() == 32);
  const auto check_window = [&](const dataset& from, std::int64_t index, std::size_t window) {
    const std::vector<std::int64_t> one{index};
    const auto batch = from.get(one);
    for (std::size_t i = 0; i < 2; ++i) {
      const auto row = unboxed(batch.get_if<value_tuple>()->items[i]);
      CHECK(row.sizes() == at::IntArrayRef({1, 64}));
      const auto bytes = row.to(at::kByte);
      CHECK(characters::text_of({bytes.const_data_ptr<std::uint8_t>(), 64}) ==
            text.substr(64 * window + i, 64));
    }
  };
  check_window(*data->train(), 15, 15);  // holds the end of the first file
  check_window(*data->train(), 143, 143);
  check_window(*data->train(), 144, 160);
  check_window(*data->train(), 288, 320);
  check_window(*data->validation().front(), 0, 144);
  check_window(*data->test().front(), 31, 319);
}

TEST_CASE("csv: a checkpoint's columns are found in an evaluated file by their names") {
  const folder here;
  here.write("train.csv", "kind,a,b\n1,2,3\n0,4,5\n");
  here.write("other.csv", "b,kind,a\n3,1,2\n");
  const auto trained = csv_data(here.path() + "/train.csv", "kind");
  CHECK(trained->state().empty());
  trained->setup(stage::train);
  const std::vector<std::int64_t> first{0};
  const auto part = [&](const dataset& of, std::size_t i) {
    return unboxed(of.get(first).get_if<value_tuple>()->items[i]);
  };
  const auto wanted = trained->train();
  struct row {
    const char* target;
    bool sized;  // the file was read before, for its sizes
  };
  for (const auto& [target, sized] : {row{"", false}, row{"kind", false}, row{"", true}}) {
    const auto tested = csv_data(here.path() + "/other.csv", target);
    tested->setup(stage::test);
    if (sized) tested->test();
    tested->load_state(trained->state());
    const auto found = tested->test().at(0);
    CHECK(part(*found, 0).equal(part(*wanted, 0)));
    CHECK(part(*found, 1).equal(part(*wanted, 1)));
    tested->load_state(trained->state());  // of another rank
    CHECK(tested->state() == trained->state());
  }
  CHECK_THROWS_WITH(csv_data(here.path() + "/other.csv", "a")->load_state(trained->state()),
                    Contains("learned the column \"kind\", and data.target is \"a\""));
  here.write("less.csv", "b,kind\n3,1\n");
  const auto less = csv_data(here.path() + "/less.csv");
  less->setup(stage::test);
  less->load_state(trained->state());
  CHECK_THROWS_WITH(less->test(), Contains("less.csv: there is no column \"a\""));
  // A fit that resumes has read its file already.
  const auto resumed = csv_data(here.path() + "/other.csv", "kind");
  resumed->setup(stage::train);
  resumed->train();
  CHECK_THROWS_WITH(resumed->load_state(trained->state()),
                    Contains("other.csv: its columns, b, kind, a with") &&
                        Contains("the checkpoint's order, kind, a, b with"));
  CHECK_THROWS_WITH(resumed->load_state("{}"), Contains("take another checkpoint"));
  CHECK_THROWS_WITH(resumed->load_state(R"({"columns":["a"],"target":"b"})"),
                    Contains("its target is none of them"));
}

TEST_CASE("csv: the training file decides whether the targets of an evaluated file are labels") {
  const folder here;
  here.write("numbers.csv", "x,y\n1,0.5\n2,1\n");
  here.write("whole.csv", "x,y\n3,2\n4,1\n");
  here.write("labels.csv", "x,y\n1,0\n2,1\n");
  const auto state_of = [&](const std::string& file) {
    const auto trained = csv_data(here.path() + file);
    trained->setup(stage::train);
    trained->train();
    return trained->state();
  };
  const std::vector<std::int64_t> both{0, 1};
  const auto targets_of = [&](data_module& data) {
    return unboxed(data.test().at(0)->get(both).get_if<value_tuple>()->items[1]);
  };
  const auto numbers = at::tensor({2.F, 1.F}).view({2, 1});
  for (const bool sized : {false, true}) {  // the file was read before
    const auto tested = csv_data(here.path() + "/whole.csv");
    tested->setup(stage::test);
    if (sized) tested->test();
    tested->load_state(state_of("/numbers.csv"));
    const auto found = targets_of(*tested);
    CHECK(found.scalar_type() == at::kFloat);
    CHECK(found.equal(numbers));
    // A state of an earlier version says nothing of it.
    const auto earlier = csv_data(here.path() + "/whole.csv");
    earlier->setup(stage::test);
    if (sized) earlier->test();
    earlier->load_state(R"({"columns":["x","y"],"target":"y"})");
    CHECK(targets_of(*earlier).equal(at::tensor({2, 1}, at::kLong)));
    const auto wrong = csv_data(here.path() + "/numbers.csv");
    wrong->setup(stage::test);
    if (sized) wrong->test();
    wrong->load_state(state_of("/labels.csv"));
    CHECK_THROWS_WITH(wrong->test(), Contains("no whole numbers from 0, as the training targets"));
    CHECK(wrong->predict().at(0)->size() == 2);
  }
}

TEST_CASE("csv: columns whose names are not UTF-8 are trained, and not recorded") {
  const folder here;
  here.write("train.csv", "caf\xe9,b\n1,2\n");
  const auto data = csv_data(here.path() + "/train.csv");
  data->setup(stage::train);
  CHECK(data->train()->size() == 1);
  CHECK(data->state().empty());
}

TEST_CASE("impossible options of synthetic data are refused") {
  CHECK_THROWS_AS(synthetic({.samples = -1}), user_error);
  CHECK_THROWS_AS(synthetic({.classes = 0}), user_error);
  CHECK_THROWS_AS(synthetic({.shape = {3, 0}}), user_error);
  CHECK_THROWS_AS(synthetic({.samples = std::int64_t{1} << 40}), user_error);
  CHECK_THROWS_WITH(find_data("fashion"), Contains("fashion_mnist, synthetic"));
}

}  // namespace
}  // namespace troupe
