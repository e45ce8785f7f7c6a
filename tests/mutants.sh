#!/usr/bin/env bash
# Hunts every planted bug (messages/planted.hpp) with the standard budget, and the clean build with the same one.
# Prints which strategy found it after how many runs; the last line is `killed N of N`.
#
#   bash tests/mutants.sh [SECONDS]            per bug, on one core (60)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
seconds=${1:-60}
jobs=$(nproc)

cmake -G Ninja -B build-mutants -S . -DTROUPE_WITH_TORCH=OFF -DTROUPE_PLANT_BUGS=ON >/dev/null
ninja -C build-mutants --quiet mutants
hunter=build-mutants/tests/mutants
found=$(mktemp)
trap 'rm -f "$found"' EXIT

mapfile -t bugs < <("$hunter" list)
"$hunter" none "$seconds" || clean=no
# Which of them survived is counted from their lines: xargs says only that some did.
printf '%s\n' "${bugs[@]}" | xargs -P "$jobs" -I{} "$hunter" {} "$seconds" | tee "$found" || true
killed=$(grep -c '^killed' "$found" || true)
[[ -z ${clean:-} ]] || echo "the build without a planted bug is not clean"
echo "killed $killed of ${#bugs[@]}"
[[ $killed -eq ${#bugs[@]} && -z ${clean:-} ]]
