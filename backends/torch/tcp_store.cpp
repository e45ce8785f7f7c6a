#include "backends/torch/tcp_store.hpp"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "troupe/failure.hpp"

namespace troupe {

namespace {

using std::chrono::milliseconds;

constexpr milliseconds connect_limit = std::chrono::minutes{5};
constexpr milliseconds answer_limit = std::chrono::seconds{10};

class torch_store : public launcher_store {
public:
  explicit torch_store(store_place where) : where_(std::move(where)) {}

  const std::string& host() const override { return where_.host; }

  void set(const std::string& key, const std::string& text) override {
    guarded([&](c10d::TCPStore& store) {
      store.set(full(key), std::vector<std::uint8_t>(text.begin(), text.end()));
    });
  }

  std::optional<std::string> find(const std::string& key) override {
    std::optional<std::string> found;
    guarded([&](c10d::TCPStore& store) {
      if (!store.check({full(key)})) return;
      const auto bytes = store.get(full(key));
      found.emplace(bytes.begin(), bytes.end());
    });
    return found;
  }

  std::string wait(const std::string& key, milliseconds limit) override {
    // 0 would mean: without a limit.
    limit = std::max(limit, milliseconds{1});
    guarded([&](c10d::TCPStore& store) { store.wait({full(key)}, limit); });
    return find(key).value();
  }

private:
  std::string full(const std::string& key) const { return where_.prefix + key; }

  // TCPStore locks each of its calls itself.
  template <class Call>
  void guarded(const Call& call) {
    try {
      call(*connected());
    } catch (const c10::Error& error) {
      const std::string_view why = error.what_without_backtrace();
      throw user_error(
          errc::membership,
          fmt::format("the store of {} at {}:{} {}: {}", where_.launcher, where_.host, where_.port,
                      where_.serves ? "cannot be served; if the port is in use, set "
                                      "MASTER_PORT"
                                    : "cannot be used",
                      why.substr(0, why.find('\n'))));
    }
  }

  c10::intrusive_ptr<c10d::TCPStore> connected() {
    const std::lock_guard hold{guard_};
    if (!store_) {
      c10d::TCPStoreOptions options;
      options.port = where_.port;
      options.isServer = where_.serves;
      options.waitWorkers = false;
      options.timeout = connect_limit;
      store_ = c10::make_intrusive<c10d::TCPStore>(where_.host, options);
      store_->setTimeout(answer_limit);
    }
    return store_;
  }

  const store_place where_;
  std::mutex guard_;
  c10::intrusive_ptr<c10d::TCPStore> store_;
};

}  // namespace

std::shared_ptr<launcher_store> tcp_store(store_place where) {
  return std::make_shared<torch_store>(std::move(where));
}

}  // namespace troupe
