// The program with a catalog of integers, without LibTorch: all commands that need no tensors.
#pragma once

#include "apps/troupe/program.hpp"
#include "tests/support/integer_learner.hpp"

#include <nlohmann/json_fwd.hpp>

#include <mutex>
#include <string>
#include <vector>

namespace troupe::testing {

class integer_catalog : public program::catalog {
public:
  explicit integer_catalog(integer_options options) : options_(std::move(options)) {}

  std::vector<program::model_facts> models() const override;
  std::int64_t parameters(const std::string&) const override { return 4; }
  std::string layers(const std::string&) const override { return "no layers"; }
  std::vector<program::data_facts> data_sets() const override;
  recipe_ptr recipe(const program::learning& what) const override;
  void configure(const program::learning&, trainer_options&) const override {}
  void take_sizes(const std::string&, program::learning&) const override {}
  bool has_test(const program::learning&, std::uint64_t) const override { return false; }
  void search_rate(const program::rate_search& how, program::learning& of,
                   trainer_options& options) const override;
  program::rate_curve rates_found(const job_outcome& outcome) const override;
  std::int64_t search_batch_size(
      const program::size_search& how,
      const std::function<job_outcome(std::int64_t)>& run) const override;
  program::file_pieces torch_checkpoint(const snapshot& what) const override;
  std::string write(const program::writing& what) const override;
  std::vector<std::string> predictions(const std::string& model,
                                       const value& result) const override;
  std::map<std::string, std::string> versions() const override { return {{"libtorch", "none"}}; }
  std::vector<program::device_facts> devices() const override { return {{"cpu", true, "one"}}; }
  double matrix_speed() const override { return 100; }

private:
  integer_options options_;
};

/// One call of the program: its exit code and its output.
struct said {
  int code = 0;
  std::string out;
  std::string err;
  bool survivors = false;
};

/// Runs `troupe ARGUMENTS` in this process, in real time, on threads. Cluster environments are read
/// from `variables`, too.
said troupe_says(std::vector<std::string> arguments,
                 std::map<std::string, std::string> variables = {}, integer_options options = {});

/// Its output for programs: one JSON value per line.
std::vector<nlohmann::json> lines_of(const std::string& text);

}  // namespace troupe::testing
