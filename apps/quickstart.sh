#!/usr/bin/env bash
# Installs what is missing, builds, and trains Fashion-MNIST on two ranks for three epochs. Flags go to `troupe fit`,
# on top of apps/quickstart.toml: the cnn, which passes 0.87 in three epochs (the mlp ends at 0.85 to 0.87). A run that
# is resumed has a configuration of its own.
#
#   bash apps/quickstart.sh [FIT FLAGS]        e.g. --model mlp --ranks 4
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

bash "$here/apps/setup.sh"
[[ -t 2 ]] && quiet= || quiet=--quiet
[[ -x $here/build/bin/troupe ]] || echo "building build/bin/troupe (minutes the first time, then seconds)" >&2
ninja -C "$here/build" $quiet troupe >&2

defaults=(--config "$here/apps/quickstart.toml")
[[ -z ${TROUPE_RESUME:-} ]] || defaults=()
for flag in "$@"; do
  case $flag in --resume | --resume=* | --checkpoint | --checkpoint=*) defaults=() ;; esac
done
exec "$here/build/bin/troupe" fit "${defaults[@]}" "$@"
