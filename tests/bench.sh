#!/usr/bin/env bash
# Measures Troupe and its peers on this machine: the bare loop over memory, Gloo (through Python's torch.distributed),
# Open MPI, Python's DDP, Lightning and torchft. Installs missing dependencies, builds, and prints tables of ratios.
#
#   bash tests/bench.sh [--quick] [--only PART] [--page] [RESULTS.jsonl]
#
# Runs five rounds, each with every subject in turn (--quick: two rounds, fewer sizes). Every measurement becomes a line
# of the results file, by default build/bench.jsonl. --only measures one of collectives, training, start, recovery.
# --page also writes the tables into docs/performance.md.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

flags=()
results=build/bench.jsonl
while (($#)); do
  case $1 in
    --quick) flags+=(--quick) ;;
    --only)
      case ${2-} in
        collectives | training | start | recovery) flags+=(--only "$2"); shift ;;
        *) echo "bench: --only takes collectives, training, start or recovery" >&2; exit 2 ;;
      esac ;;
    --page) flags+=(--page docs/performance.md) ;;
    -*) echo "bench: unknown flag $1; there are --quick, --only and --page" >&2; exit 2 ;;
    *) results=$1 ;;
  esac
  shift
done

bash apps/setup.sh
ninja -C build troupe training_floor >&2

# Lightning and torchft get an environment of their own that uses the PyTorch of the build.
wanted="lightning==2.6.6 torchft==0.2.0"
peers=build/peers
oracle=build/venv/bin/python3
if [[ -n ${TROUPE_TORCH:-} ]]; then
  oracle=$TROUPE_TORCH/../../../../bin/python3
fi
if [[ ! -e $peers/installed || $(<$peers/installed) != "$wanted" ]]; then
  echo "bench: installing $wanted from PyPI into $peers" >&2
  "$oracle" -m venv --clear $peers
  "$oracle" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
    >"$($peers/bin/python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torch_of_the_build.pth"
  $peers/bin/python3 -m pip install --quiet --no-input --disable-pip-version-check $wanted >&2
  echo "$wanted" >$peers/installed
fi
mpicc -O2 -o $peers/mpi_all_reduce tests/benchmarks/peers/mpi_all_reduce.c

exec $peers/bin/python3 -B tests/benchmarks/side_by_side.py --troupe build/bin/troupe --python $peers/bin/python3 \
  --mpi-program $peers/mpi_all_reduce --floor-program build/tests/training_floor --results "$results" "${flags[@]}"
