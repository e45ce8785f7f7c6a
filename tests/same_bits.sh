#!/usr/bin/env bash
# Draws settings of fits at random, and runs each draw undisturbed and in other ways under load: other placements and
# communicators, failures of ranks, resumes. Weights and metrics must be equal. Fails at the first difference and prints
# both commands. The draws are those of SEED and the numbers after it.
#
#   bash tests/same_bits.sh [SECONDS [SEED]]    (default: 120 s, a fresh seed)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export TROUPE_PROGRAM=${TROUPE_PROGRAM:-build/bin/troupe}
exec python3 -B tests/same_bits.py "${1:-120}" "${2:-$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')}"
