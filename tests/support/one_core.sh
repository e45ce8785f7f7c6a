#!/usr/bin/env bash
# Runs a command, with all processes that it starts, on the first of the cores that it may use.
#
#   bash one_core.sh COMMAND [ARGUMENTS]
set -euo pipefail
allowed=$(taskset -cp $$)
allowed=${allowed##*: }
exec taskset -c "${allowed%%[-,]*}" "$@"
