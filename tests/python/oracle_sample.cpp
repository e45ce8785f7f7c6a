// Writes what the scripts of this folder compute again. Usage: oracle_sample KIND FOLDER [MORE],
// where KIND is reference, numbers, measures or schedules. samples.hpp says what each writes.
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/python/samples.hpp"

int main(int count, char** words) try {
  const std::vector<std::string> given(words + 1, words + count);
  const std::string kind = given.size() < 2 ? "" : given[0];
  if (kind == "reference")
    write_reference_run({given.begin() + 1, given.end()});
  else if (kind == "numbers")
    write_numbers(given[1]);
  else if (kind == "measures")
    write_measures(given[1]);
  else if (kind == "schedules")
    write_schedules(given[1]);
  else
    throw std::invalid_argument(
        "usage: oracle_sample reference|numbers|measures|schedules FOLDER [MORE]");
} catch (const std::exception& error) {
  std::cerr << error.what() << "\n";
  return 1;
}
