#!/usr/bin/env bash
# Installs missing dependencies, builds everything and runs every test. Flags are passed to ctest. The output ends with
# its summary, and its exit code is the exit code of this script.
#
#   bash tests/run.sh [CTEST FLAGS]            e.g. -R machines_test, -LE long
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bash apps/setup.sh --tests
ninja -C build
exec ctest --test-dir build -j2 --output-on-failure --no-tests=error "$@"
