#!/usr/bin/env bash
# Installs what is missing, builds everything, runs every test. Flags go to ctest, whose summary ends the output and
# whose exit code is this script's.
#
#   bash tests/run.sh [CTEST FLAGS]            e.g. -R fit_machine, -LE long
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bash apps/setup.sh --tests
ninja -C build
exec ctest --test-dir build -j2 --output-on-failure --no-tests=error "$@"
