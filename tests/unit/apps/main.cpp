// The program's tests start ranks as processes, and each of these processes runs this program.
#include "actors/rank_process.hpp"
#include "apps/troupe/recipe_text.hpp"
#include "tests/support/runner.hpp"
#include "tests/unit/apps/integer_program.hpp"

int main(int count, char** arguments) {
  using namespace troupe;
  const auto recipe = [](const std::string& text) {
    return testing::integer_catalog{{}}.recipe(program::read_recipe_text(text));
  };
  if (const auto code = run_rank_if_child(count, arguments, {recipe})) return *code;
  return testing::run_tests(count, arguments);
}
