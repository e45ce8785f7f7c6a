#!/usr/bin/env bash
# Builds the Debian packages libtroupe, libtroupe-dev and troupe, and prints their paths.
#
#   bash apps/packages/build.sh [FOLDER]            by default build/packages
set -euo pipefail
folder=$(realpath -m "${1:-"$(dirname "${BASH_SOURCE[0]}")/../../build/packages"}")
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

bash apps/setup.sh --packages
ninja -C build --quiet development troupe troupe_service >&2
log=build/packages.log
cpack --config build/CPackConfig.cmake -B "$folder" >$log 2>&1 || { cat $log >&2; exit 1; }
rm -r "$folder/_CPack_Packages"
ls "$folder"/*.deb
