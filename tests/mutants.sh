#!/usr/bin/env bash
# Hunts every planted bug (messages/planted.hpp) with the standard budget, and the clean code with the same one. One
# line each: what the exhaustive search found (states), what the swarm found (strategy, runs), and the oracle's words.
# The last line is `killed N of N`.
#
#   bash tests/mutants.sh [SECONDS] [NAME...]     per bug, on one core (60); all of them, or those named
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
seconds=${1:-60}
shift || true

# The newcomer's tree where there is one; else one without LibTorch, which none of this needs.
tree=build
if [[ ! -f $tree/build.ninja ]]; then
  tree=build-mutants
  cmake -G Ninja -B "$tree" -S . -DTROUPE_WITH_TORCH=OFF >/dev/null
fi
ninja -C "$tree" --quiet mutants
hunter=$tree/tests/mutants
found=$(mktemp)
trap 'rm -f "$found"' EXIT

mapfile -t bugs < <(if (($#)); then printf '%s\n' "$@"; else "$hunter" list; fi)
# Which of them survived is counted from their lines: xargs says only that some did.
printf '%s\n' none "${bugs[@]}" | xargs -P "$(nproc)" -I{} "$hunter" {} "$seconds" | tee "$found" || true
killed=$(grep -c '^killed' "$found" || true)
clean=$(grep -c '^clean' "$found" || true)
((clean)) || echo "the code without a planted bug is not clean"
echo "killed $killed of ${#bugs[@]}"
((killed == ${#bugs[@]} && clean))
