#!/usr/bin/env bash
# Repeats small fits under load, more at a time than the machine has cores, and compares the digests of their weights.
# The fits vary in optimizer, dropout, one to four ranks, threads or processes, fused or separate step, and resumes.
# Fails at the first digest that differs and prints both commands.
#
#   bash tests/same_bits.sh [SECONDS [SEED]]    (default: 120 s, a fresh seed)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export TROUPE_PROGRAM=${TROUPE_PROGRAM:-build/bin/troupe}
exec python3 -B tests/same_bits.py "${1:-120}" "${2:-$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')}"
