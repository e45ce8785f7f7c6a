#!/usr/bin/env bash
# Installs what is missing to build Troupe (with --tests: to test it) on Debian 12, and configures build/.
# Asks nothing; says what it is about to install; silent and quick when there is nothing to do.
#
#   bash apps/setup.sh [--tests] [--packages] [--nccl]
#
# --packages        what apps/packages/build.sh needs as well
# --nccl            NCCL and the headers of the CUDA runtime as well, from PyPI, for machines with GPUs (about 200 MB)
# TROUPE_TORCH=DIR  use the LibTorch in DIR, which holds share/cmake/Torch, instead of installing one.
set -euo pipefail
[[ -z ${TROUPE_TORCH:-} ]] || TROUPE_TORCH=$(realpath -m "$TROUPE_TORCH")
cd "$(dirname "${BASH_SOURCE[0]}")/.."

torch=torch==2.13.0
packages=(g++ cmake ninja-build ccache mold git ca-certificates python3
          libcaf-dev libboost1.81-dev libssl-dev catch2 libcli11-dev libtomlplusplus-dev nlohmann-json3-dev libfmt-dev
          libjemalloc-dev libspdlog-dev libxxhash-dev librapidcheck-dev zlib1g-dev libopenmpi-dev openmpi-bin
          dataset-fashion-mnist fortunes)
want_nccl=
# Tests read with them what Troupe writes for TensorBoard and Prometheus, and compare measures. Skipped without.
test_packages=(tensorboard==2.21.0 protobuf absl-py prometheus-client torchmetrics==1.9.0 lightning-utilities packaging)
want_test_packages=
for flag in "$@"; do
  case $flag in
    --tests)
      packages+=(clang clang-format doxygen zsh fish mandoc)
      want_test_packages=yes
      ;;
    --packages) packages+=(dpkg-dev file) ;;
    --nccl) want_nccl=yes ;;
  esac
done

mkdir -p build
log=build/setup.log
exec 9>build/setup.lock
flock 9

say() { printf 'setup: %s\n' "$*" >&2; }
give_up() { say "$*"; exit 1; }

# logged COMMAND...: runs it with its output in the log, which is shown when it fails.
logged() {
  printf '\n$ %s\n' "$*" >>$log
  if ! "$@" >>$log 2>&1 </dev/null; then
    tail -n 40 $log >&2
    give_up "failed: $* (all of its output: $log)"
  fi
}

# The packages among the arguments that are not installed.
missing() {
  comm -23 <(printf '%s\n' "$@" | sort) \
    <(dpkg-query -W -f '${db:Status-Status} ${Package}\n' "$@" 2>/dev/null | sed -n 's/^installed //p' | sort)
}

install_packages() {
  local wanted as_root=()
  if ! command -v dpkg-query >/dev/null; then
    return  # not a Debian: CMake names what it misses
  fi
  mapfile -t wanted < <(missing "$@")
  [[ ${#wanted[@]} -gt 0 ]] || return 0
  if [[ $(id -u) -ne 0 ]]; then
    command -v sudo >/dev/null ||
      give_up "needs root to install ${wanted[*]}: become root, or install sudo"
    sudo -n true 2>/dev/null ||
      give_up "sudo would ask for a password: run \`sudo -v\` first, or become root"
    as_root=(sudo -n)
  fi
  say "installing ${#wanted[@]} Debian packages: ${wanted[*]}"
  logged "${as_root[@]}" apt-get update
  logged "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install --yes \
    --no-install-recommends -o DPkg::Lock::Timeout=300 "${wanted[@]}"
}

# A Python that can make virtual environments: Debian's, or whichever comes first on the path.
usable_python() {
  local candidate
  for candidate in /usr/bin/python3 python3; do
    if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
      printf '%s\n' "$candidate"
      return
    fi
  done
  return 1
}

# LibTorch comes from PyPI; the same environment is the oracle of the tests, hence safetensors.
install_torch() {
  local wanted=("$torch" numpy safetensors) stamp=build/venv/installed python
  if [[ -n ${TROUPE_TORCH:-} ]]; then
    [[ -e $TROUPE_TORCH/share/cmake/Torch/TorchConfig.cmake ]] ||
      give_up "TROUPE_TORCH=$TROUPE_TORCH is no LibTorch: it has no share/cmake/Torch/TorchConfig.cmake"
    return
  fi
  [[ -e $stamp && $(<$stamp) == "${wanted[*]}" && -x build/venv/bin/python3 ]] && return
  if ! python=$(usable_python); then
    install_packages python3 python3-venv
    python=$(usable_python) || give_up "no Python of 3.10 or newer that can make virtual environments"
  fi
  say "installing ${wanted[*]} from PyPI into build/venv (about 1 GB)"
  logged "$python" -m venv --clear build/venv
  logged build/venv/bin/python3 -m pip install --no-input --disable-pip-version-check "${wanted[@]}"
  printf '%s\n' "${wanted[*]}" >$stamp
}

# add_to_venv STAMP SIZE PACKAGES: into the environment of LibTorch, if there is one. pip gets them alone: what they
# need is among them, or there.
add_to_venv() {
  local stamp=build/venv/$1 size=$2
  shift 2
  if [[ ! -x build/venv/bin/python3 ]]; then
    say "not installing $*: there is no build/venv, because TROUPE_TORCH names another LibTorch"
    return
  fi
  [[ -e $stamp && $(<"$stamp") == "$*" ]] && return
  say "installing $* from PyPI into build/venv (about $size)"
  logged build/venv/bin/python3 -m pip install --no-input --disable-pip-version-check --no-deps "$@"
  printf '%s\n' "$*" >"$stamp"
}

configure() {
  [[ -e build/build.ninja ]] || say "configuring build/"
  logged cmake -G Ninja -S . -B build ${TROUPE_TORCH:+-DTROUPE_TORCH="$TROUPE_TORCH"}
}

: >$log
install_packages "${packages[@]}"
install_torch
# CMake looks for NCCL there.
[[ -z $want_nccl ]] ||
  add_to_venv nccl_installed "200 MB" nvidia-nccl-cu13==2.30.7 nvidia-cuda-runtime nvidia-cuda-crt nvidia-cuda-cccl
[[ -z $want_test_packages ]] || (add_to_venv test_packages_installed "30 MB" "${test_packages[@]}") ||
  say "tests go on without ${test_packages[*]}"
configure
