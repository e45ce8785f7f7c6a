// What a client sends to start a job, and the job that it means.
#pragma once

#include <troupe/trainer.hpp>

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace service {

/// The part of a request that says what is trained. Every rank's process makes its recipe of it.
struct learning {
  std::vector<std::int64_t> hidden{64};
  std::string data = "synthetic";  ///< synthetic, fashion_mnist, csv
  std::string path;                ///< csv: the file or folder
  std::int64_t samples = 2048;     ///< synthetic: of training
  std::int64_t features = 0;       ///< csv: columns besides the target
  std::int64_t classes = 10;
  double learning_rate = 0.05;
  double momentum = 0.9;
};

/// Throws troupe::user_error (bad_usage) that names the field, its value and the right ones.
learning learning_of(const nlohmann::json& request);
/// Without a recipe and without folders. Checks all of the request.
troupe::job job_of(const nlohmann::json& request);
/// A job's name, which is also its folder's: `[a-z0-9][a-z0-9_-]*`, at most 40 characters.
bool is_job_name(const std::string& name);

}  // namespace service
