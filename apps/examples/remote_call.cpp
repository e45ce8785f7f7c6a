// A function called on ranks in processes of their own, with a tensor as argument and as result.
#include <boost/asio/io_context.hpp>
#include <iostream>
#include <troupe/module.hpp>
#include <troupe/session.hpp>
#include <troupe/trainer.hpp>

namespace {

// Each rank sums the rows that it is given by its number; all get the sum of all rows.
at::Tensor sum_of_rows(troupe::rank_context& who, at::Tensor rows) {
  auto mine = at::zeros({rows.size(1)}, rows.options());
  for (std::int64_t i = who.rank(); i < rows.size(0); i += who.world()) mine += rows[i];
  who.collectives().all_reduce(troupe::buffer_of(mine), troupe::reduction::sum)->wait();
  return mine;
}

const troupe::remote_function summing{"sum_of_rows", sum_of_rows};

}  // namespace

int main(int count, char** arguments) {
  troupe::rank_process_options home;
  home.functions = {summing};
  if (const auto code = troupe::run_rank_if_child(count, arguments, home)) return *code;

  boost::asio::io_context loop;
  troupe::session session{loop.get_executor()};
  const troupe::trainer_options how{.ranks = 3, .placement = troupe::placement_kind::processes};
  const auto rows = at::arange(20.0).reshape({5, 4});
  auto outcome = session.spawn(how, summing, rows);
  std::cout << "sum " << outcome.get().sum().item<double>() << '\n';
}
