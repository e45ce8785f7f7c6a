#!/usr/bin/env bash
# Runs two campaigns of simulated jobs at the same time: random sets of faults under several kinds of schedules.
# One has 8 ranks and starts with seed 1, so it is the same every time. The other starts with a fresh seed, which also
# determines its ranks, its steps, and how often its jobs may restart. Each campaign runs for half of its time with jobs
# that restart. Fails if an oracle finds a violation; the report then ends with a case to replay.
#
#   bash tests/campaign.sh [SECONDS [SEED]]    (default: 60 s, a fresh seed)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
seconds=${1:-60}
fresh=${2:-$(od -An -N5 -tu8 /dev/urandom | tr -d ' ')}
program=${TROUPE_PROGRAM:-build/tests/campaign}  # the program, built with the guard
[[ -n ${TROUPE_PROGRAM:-} ]] || ninja -C build --quiet campaign

ranks=$((1 + fresh % 9)) steps=$((10 + fresh / 9 % 51)) restarts=$((1 + fresh / 459 % 5)) half=$(((seconds + 1) / 2))
echo "$seconds s of swarms: fixed seeds from 1;" \
  "$ranks ranks, $steps steps, $restarts restarts, fresh seeds from $fresh" \
  "(bash tests/campaign.sh $seconds $fresh)"
said=$(mktemp -d)
trap 'rm -rf "$said"' EXIT
for most in 3 0; do
  "$program" simulate --swarm --ranks 8 --max-restarts "$most" --seeds "1..1000000000" --seconds "$half" || exit 1
done >"$said/fixed" 2>&1 &
fixed=$!
status=0
for most in "$restarts" 0; do
  "$program" simulate --swarm --ranks "$ranks" --steps "$steps" --max-restarts "$most" --seconds "$half" \
    --seeds "$fresh..$((fresh + 1000000000))" || status=1
done
wait "$fixed" || status=1
cat "$said/fixed"
[[ $status -eq 0 ]] || echo "the campaign found a violation; the fresh seeds started at $fresh" >&2
exit "$status"
