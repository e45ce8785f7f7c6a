#!/usr/bin/env bash
# Campaigns in the simulated world: swarms of faults under a portfolio of schedules, two side by side on two cores.
# One has 8 ranks and begins with seed 1, so it is the same every time; the other begins with a fresh seed, which
# decides its ranks and steps too. Fails when an oracle objects; then the report ends with a case to replay.
#
#   bash tests/campaign.sh [SECONDS [SEED]]    (60, a fresh one)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
seconds=${1:-60}
fresh=${2:-$(od -An -N5 -tu8 /dev/urandom | tr -d ' ')}
program=${TROUPE_PROGRAM:-build/tests/campaign}  # the program, under the guard
[[ -n ${TROUPE_PROGRAM:-} ]] || ninja -C build --quiet campaign

ranks=$((1 + fresh % 9)) steps=$((10 + fresh / 9 % 51))
echo "$seconds s of swarms: fixed seeds from 1; $ranks ranks, $steps steps, fresh seeds from $fresh" \
  "(bash tests/campaign.sh $seconds $fresh)"
said=$(mktemp -d)
trap 'rm -rf "$said"' EXIT
"$program" simulate --swarm --ranks 8 --seeds "1..1000000000" --seconds "$seconds" >"$said/fixed" 2>&1 &
fixed=$!
status=0
"$program" simulate --swarm --ranks "$ranks" --steps "$steps" --seconds "$seconds" \
  --seeds "$fresh..$((fresh + 1000000000))" || status=1
wait "$fixed" || status=1
cat "$said/fixed"
[[ $status -eq 0 ]] || echo "the campaign found a violation; fresh seeds were from $fresh" >&2
exit "$status"
