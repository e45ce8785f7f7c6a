#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <future>
#include <mutex>

#include "backends/torch/idx.hpp"
#include "troupe/data.hpp"
#include "troupe/detail/tensor.hpp"
#include "troupe/failure.hpp"

namespace troupe {

namespace {

constexpr std::int64_t side = 28;
constexpr std::int64_t classes = 10;

/// Kept as bytes, a quarter of the memory of floats; each batch converts its own samples.
struct images_and_labels {
  at::Tensor images;
  at::Tensor labels;
};
using content_ptr = std::shared_ptr<const images_and_labels>;

/// The training or the test half. The header gives its size; a thread inflates the pixels (0.2 s)
/// while the run prepares its first batch.
class image_set : public dataset {
public:
  image_set(std::int64_t size, std::shared_future<content_ptr> content)
      : size_(size), content_(std::move(content)) {}

  std::int64_t size() const override { return size_; }

  value get(std::span<const std::int64_t> indices) const override {
    const auto& content = *content_.get();
    // ATen only reads this memory.
    auto* first = const_cast<std::int64_t*>(indices.data());
    const auto which = at::from_blob(first, {static_cast<std::int64_t>(indices.size())}, at::kLong);
    return value_tuple{{boxed(content.images.index_select(0, which).to(at::kFloat).div_(255)),
                        boxed(content.labels.index_select(0, which).to(at::kLong))}};
  }

private:
  std::int64_t size_;
  std::shared_future<content_ptr> content_;
};

at::Tensor bytes_of(std::vector<std::uint8_t> bytes, at::IntArrayRef shape) {
  auto held = std::make_shared<std::vector<std::uint8_t>>(std::move(bytes));
  return at::from_blob(
      held->data(), shape, [held](void*) {}, at::kByte);
}

class fashion_mnist_data : public data_module {
public:
  explicit fashion_mnist_data(std::string folder) : folder_(std::move(folder)) {}

  std::string name() const override { return "fashion_mnist"; }
  void prepare_data() override {
    for (const auto* half : {"train", "t10k"}) file(half, "labels-idx1"), file(half, "images-idx3");
  }
  void setup(troupe::stage purpose) override {
    if (purpose == stage::train || purpose == stage::start) train();
    validation();
  }
  dataset_ptr train() override { return half(train_, "train"); }
  std::vector<dataset_ptr> validation() override { return {half(test_, "t10k")}; }
  std::vector<dataset_ptr> test() override { return validation(); }
  std::vector<dataset_ptr> predict() override { return validation(); }

private:
  std::string fix() const {
    return "install the data with `apt-get install dataset-fashion-mnist`, or name its folder with "
           "--data-dir";
  }

  std::string file(const std::string& half, const std::string& what) const {
    namespace fs = std::filesystem;
    const auto name = fmt::format("{}-{}-ubyte", half, what);
    std::error_code ignored;
    for (const auto* ending : {".gz", ""})
      if (auto path = fs::path{folder_} / (name + ending); fs::is_regular_file(path, ignored))
        return path.string();
    throw user_error(
        errc::bad_configuration,
        fmt::format("fashion_mnist: there is no {}.gz in the folder {}; {}", name, folder_, fix()));
  }

  dataset_ptr half(dataset_ptr& kept, const std::string& name) {
    const std::lock_guard lock{mutex_};
    if (!kept) kept = open(name);
    return kept;
  }

  dataset_ptr open(const std::string& name) const {
    const auto images = file(name, "images-idx3"), labels = file(name, "labels-idx1");
    const auto shape = read_idx_shape(images, fix());
    if (shape.size() != 3 || shape[1] != side || shape[2] != side)
      throw user_error(errc::bad_configuration,
                       fmt::format("{}: it holds no images of 28 x 28; {}", images, fix()));
    auto content = std::async(std::launch::async, &load, images, labels, shape, fix());
    return std::make_shared<image_set>(shape[0], content.share());
  }

  static content_ptr load(const std::string& images, const std::string& labels,
                          const std::vector<std::int64_t>& shape, const std::string& fix) {
    auto labels_read = read_idx(labels, {shape[0]}, fix);
    if (std::any_of(labels_read.begin(), labels_read.end(), [](auto x) { return x >= classes; }))
      throw user_error(errc::bad_configuration,
                       fmt::format("{}: a label is above 9; {}", labels, fix));
    auto content = std::make_shared<images_and_labels>();
    content->labels = bytes_of(std::move(labels_read), {shape[0]});
    content->images = bytes_of(read_idx(images, shape, fix), {shape[0], 1, side, side});
    return content;
  }

  std::string folder_;
  std::mutex mutex_;
  dataset_ptr train_, test_;
};

}  // namespace

data_ptr fashion_mnist(std::string folder) {
  return std::make_shared<fashion_mnist_data>(std::move(folder));
}

}  // namespace troupe
