#!/usr/bin/env bash
# Hunts every planted bug (messages/planted.hpp) with the standard budget, and the clean code with the same one. One
# line each: what the exhaustive search found (states), what the swarm found (strategy, runs), and the oracle's words.
# Bugs that only real tensors meet have a hunter of their own, where the tree has LibTorch.
# The last line is `killed N of N`.
#
#   bash tests/mutants.sh [SECONDS] [NAME...]     per bug, on one core (60); all of them, or those named
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
seconds=${1:-60}
shift || true

# The newcomer's tree where there is one; else one without LibTorch.
tree=build
if [[ ! -f $tree/build.ninja ]]; then
  tree=build-mutants
  cmake -G Ninja -B "$tree" -S . -DTROUPE_WITH_TORCH=OFF >/dev/null
fi
hunters=(mutants)
if ninja -C "$tree" -t query mutants_tensors >/dev/null 2>&1; then
  hunters+=(mutants_tensors)
else
  echo "left out: the bugs that only real tensors meet, because $tree is built without LibTorch"
fi
ninja -C "$tree" --quiet "${hunters[@]}"

hunts=() clean_hunts=()
for hunter in "${hunters[@]}"; do
  before=${#hunts[@]}
  for bug in $("$tree/tests/$hunter" list); do
    if (($# == 0)) || [[ " $* " == *" $bug "* ]]; then hunts+=("$tree/tests/$hunter $bug $seconds"); fi
  done
  if ((${#hunts[@]} > before)); then clean_hunts+=("$tree/tests/$hunter none $seconds"); fi
done
wanted=${#hunts[@]}
if (($# > wanted)); then wanted=$#; fi  # a name that no hunter knows

found=$(mktemp)
trap 'rm -f "$found"' EXIT
# Which of them survived is counted from their lines: xargs says only that some did.
printf '%s\n' "${clean_hunts[@]}" "${hunts[@]}" | xargs -P "$(nproc)" -L1 env | tee "$found" || true
killed=$(grep -c '^killed' "$found" || true)
clean=$(grep -c '^clean' "$found" || true)
((clean == ${#clean_hunts[@]})) || echo "the code without a planted bug is not clean"
echo "killed $killed of $wanted"
((killed == wanted && clean == ${#clean_hunts[@]}))
