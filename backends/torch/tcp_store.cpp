#include "backends/torch/tcp_store.hpp"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <future>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "troupe/failure.hpp"

namespace troupe {

namespace {

using std::chrono::milliseconds;
using store_ptr = c10::intrusive_ptr<c10d::TCPStore>;

constexpr milliseconds answer_limit = std::chrono::seconds{10};
// TCPStore keeps the patience itself where nothing listens.
constexpr milliseconds connect_slack = std::chrono::seconds{1};

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

  store_ptr connected() {
    const std::lock_guard hold{guard_};
    if (!store_) {
      store_ = opened();
      store_->setTimeout(answer_limit);
    }
    return store_;
  }

  // The constructor waits without a limit for the first answer of whatever listens there. So
  // another thread calls it, and is left behind if it does not return.
  store_ptr opened() const {
    c10d::TCPStoreOptions options;
    options.port = where_.port;
    options.isServer = where_.serves;
    options.waitWorkers = false;
    options.timeout = where_.patience;
    std::packaged_task<store_ptr()> open{[host = where_.host, options] {
      return c10::make_intrusive<c10d::TCPStore>(host, options);
    }};
    auto store = open.get_future();
    std::thread{std::move(open)}.detach();
    if (store.wait_for(where_.patience + connect_slack) == std::future_status::ready)
      return store.get();
    throw user_error(errc::membership,
                     fmt::format("what listens at {}:{} is not the store of {}, or its process is "
                                 "stopped: set MASTER_PORT to a free port",
                                 where_.host, where_.port, where_.launcher));
  }

  const store_place where_;
  std::mutex guard_;
  store_ptr store_;
};

}  // namespace

std::shared_ptr<launcher_store> tcp_store(store_place where) {
  return std::make_shared<torch_store>(std::move(where));
}

}  // namespace troupe
