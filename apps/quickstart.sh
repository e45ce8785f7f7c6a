#!/usr/bin/env bash
# Installs what is missing, builds, and trains Fashion-MNIST on two ranks for three epochs: what `troupe fit` does
# when nothing else is said. Flags go to it.
#
#   bash apps/quickstart.sh [FIT FLAGS]        e.g. --model cnn --ranks 4
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

bash "$here/apps/setup.sh"
[[ -t 2 ]] && quiet= || quiet=--quiet
[[ -x $here/build/bin/troupe ]] || echo "building build/bin/troupe (minutes the first time, then seconds)" >&2
ninja -C "$here/build" $quiet troupe >&2
exec "$here/build/bin/troupe" fit "$@"
