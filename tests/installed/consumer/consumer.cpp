#include <boost/asio/io_context.hpp>
#include <iostream>
#include <troupe/session.hpp>

int main() {
  boost::asio::io_context loop;
  troupe::session session{loop.get_executor()};
  const auto sum = [](troupe::rank_context& who) {
    std::int64_t mine = who.rank() + 1;
    who.collectives().all_reduce({&mine, 1, troupe::dtype::i64}, troupe::reduction::sum)->wait();
    return mine;
  };
  std::cout << "sum " << session.spawn(4, sum).get() << '\n';
}
