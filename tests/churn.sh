#!/usr/bin/env bash
# Trains with ranks in processes. About once a second a random rank gets SIGKILL, SIGSTOP or SIGTERM. The job must end
# with the weights and the metrics of an undisturbed run, and leave nothing behind. Fails with a list of violations.
#
#   bash tests/churn.sh [SECONDS [SEED]]    (default: 60 s, a fresh seed)
#
# TROUPE_CHURN_RANKS sets another number of ranks than 8, TROUPE_CHURN_SPARES a number of spares (0), and
# TROUPE_CHURN_KINDS which signals are drawn from ("kill kill stop term").
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export TROUPE_PROGRAM=${TROUPE_PROGRAM:-build/bin/troupe}
exec python3 -B tests/end_to_end/churn.py "${1:-60}" "${2:-$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')}" \
  "${TROUPE_CHURN_RANKS:-8}"
