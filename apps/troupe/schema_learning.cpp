#include "apps/troupe/schema_parts.hpp"

#include <cstdint>
#include <utility>

namespace troupe::program {

namespace {

using words = std::vector<std::string>;
// Names of models or data sets, with their settings.
using own_names = std::vector<std::pair<std::string, schema>>;

// The names that a user can choose from, the user's own first: the first of them is the default.
words names_of(const own_names& own, const words& built_in) {
  words all;
  for (const auto& [name, has] : own) all.push_back(name);
  all.insert(all.end(), built_in.begin(), built_in.end());
  return all;
}

// The settings from `first` on exist only if `chooser` has one of `names`.
void only_with(schema& s, std::size_t first, const std::string& chooser, const words& names) {
  for (auto i = first; i < s.size(); ++i) {
    s[i].chooser = chooser;
    s[i].with = names;
  }
}

// A setting that only some of the built-in models or data sets have.
void keep_with(schema& s, const std::string& key, const words& names) {
  for (auto& one : s)
    if (one.key == key && !one.own) one.with = names;
}

void add_own(schema& s, const std::string& table, const own_names& own) {
  for (const auto& [name, has] : own)
    for (auto one : has) {
      one.key = table + "." + one.key;
      one.chooser = table + ".name";
      one.with = {name};
      one.own = true;
      s.push_back(std::move(one));
    }
}

void add_models(schema& s, const schema_names& names) {
  add(s, "model.name", kind::choice,
      names.own_models.empty() ? "mlp" : names.own_models.front().first, "--model",
      "what is trained; the command `models` lists them", names_of(names.own_models, names.models));
  const auto first = s.size();
  auto& hidden = add(s, "model.hidden", kind::integers, std::vector<std::int64_t>{256, 128}, "",
                     "widths of the mlp's hidden layers");
  hidden.low = 1;
  hidden.high = 1 << 20;
  auto& dropout =
      add(s, "model.dropout", kind::number, 0.0, "",
          "share that is dropped: mlp and cnn, after each ReLU of a linear layer; gpt, of "
          "the weights of attention and of what each block adds");
  dropout.low = 0;
  dropout.high = 0.99;
  only_with(s, first, "model.name", names.models);
  keep_with(s, "model.hidden", {"mlp"});
  add_own(s, "model", names.own_models);
}

void add_data(schema& s, const schema_names& names) {
  add(s, "data.name", kind::choice,
      names.own_data.empty() ? "fashion_mnist" : names.own_data.front().first, "--data",
      "what it is trained on", names_of(names.own_data, names.data_sets));
  const auto first = s.size();
  add(s, "data.dir", kind::text, setting_value{}, "--data-dir",
      "the data set's folder or file; by default where its Debian package puts it")
      .shape = "PATH";
  add(s, "data.target", kind::text, setting_value{}, "",
      "csv: the column that is learned; by default the last one")
      .shape = "COLUMN";
  auto& samples = add(s, "data.samples", kind::integer, std::int64_t{2048}, "",
                      "training samples of made-up data (synthetic)");
  samples.low = 1;
  samples.high = count_limit;
  auto& evaluated = add(s, "data.evaluation_samples", kind::integer, std::int64_t{512}, "",
                        "its samples of validation, test and prediction");
  evaluated.low = 0;
  evaluated.high = count_limit;
  only_with(s, first, "data.name", names.data_sets);
  auto with_files = names.data_sets;
  std::erase(with_files, "synthetic");
  keep_with(s, "data.dir", with_files);
  keep_with(s, "data.target", {"csv"});
  for (const auto* key : {"data.samples", "data.evaluation_samples"})
    keep_with(s, key, {"synthetic"});
  add_own(s, "data", names.own_data);
}

// A user's module has optimizers of its own.
void add_optimizer(schema& s, const schema_names& names) {
  const auto first = s.size();
  add(s, "optimizer.name", kind::choice, "sgd", "--optimizer", "the optimizer",
      {"sgd", "adam", "adamw"});
  const auto number = [&](const char* key, double fallback, const char* flag,
                          const char* help) -> setting& {
    auto& one = add(s, key, kind::number, fallback, flag, help);
    one.low = 0;
    return one;
  };
  number("optimizer.learning_rate", 0.05, "--learning-rate", "of the optimizer");
  number("optimizer.momentum", 0.9, "--momentum", "of sgd").high = 1;
  number("optimizer.weight_decay", 0, "--weight-decay", "of the optimizer");
  add(s, "optimizer.scheduler", kind::choice, "none", "",
      "how the learning rate falls to 0 over max_epochs, epoch by epoch",
      {"none", "cosine", "polynomial"});
  auto& warm_up = add(s, "optimizer.warmup_epochs", kind::integer, std::int64_t{0}, "",
                      "epochs in which the learning rate rises from a third");
  warm_up.low = 0;
  warm_up.high = count_limit;
  only_with(s, first, "model.name", names.models);
}

}  // namespace

setting& add(schema& all, std::string key, kind k, setting_value fallback, std::string flag,
             std::string help, std::vector<std::string> choices) {
  all.push_back({.key = std::move(key),
                 .kind = k,
                 .fallback = std::move(fallback),
                 .flag = std::move(flag),
                 .help = std::move(help),
                 .choices = std::move(choices),
                 .refused = {},
                 .elsewhere = {},
                 .shape = {},
                 .bare = {},
                 .former = {},
                 .chooser = {},
                 .with = {}});
  if (k == kind::boolean) all.back().bare = "true";
  return all.back();
}

void add_learning(schema& s, const schema_names& names) {
  add_models(s, names);
  add_data(s, names);
  add_optimizer(s, names);
}

}  // namespace troupe::program
