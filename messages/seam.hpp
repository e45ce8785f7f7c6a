// The seam to CAF: what differs between CAF 0.17 (the distributions' version, the one CI compiles)
// and 1.x is named here and nowhere else.
#pragma once

#include <caf/config.hpp>
#include <caf/replies_to.hpp>
#include <caf/typed_actor.hpp>

namespace troupe::seam {

#if CAF_MAJOR_VERSION == 0 && CAF_MINOR_VERSION == 17
template <class Signature>
struct signature;
template <class R, class... A>
struct signature<R(A...)> {
  using type = typename caf::replies_to<A...>::template with<R>;
};
template <class... A>
struct signature<void(A...)> {
  using type = caf::reacts_to<A...>;
};
#else
#error \
    "Troupe is tested with CAF 0.17 (libcaf-dev); other versions need a branch in messages/seam.hpp"
#endif

/// A typed actor handle: one function type per message it handles. At most about 15 of them.
template <class... Signatures>
using interface = caf::typed_actor<typename signature<Signatures>::type...>;

}  // namespace troupe::seam
