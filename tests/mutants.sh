#!/usr/bin/env bash
# Hunts every mutant (tests/mutants/) with the standard budget, and the unchanged code with the same one. One line each:
# the finder, how soon it found something, and the words of the oracle. Mutants that only real tensors meet are hunted
# where the tree has LibTorch. The last line is `killed N of N`.
#
#   bash tests/mutants.sh [SECONDS] [NAME...]     per mutant, on one core (60); all of them, or those named
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
hunters=(hunter_of_jobs backends_test data_order_test integration_test machines_test)
for one in hunter_of_tensors nccl_test torch_devices_test torch_test; do
  if ninja -C "$tree" -t query "$one" >/dev/null 2>&1; then hunters+=("$one"); fi
done
ninja -C "$tree" --quiet "${hunters[@]}"
exec python3 -B tests/mutants/mutants.py hunt "$tree" "$seconds" "$@"
