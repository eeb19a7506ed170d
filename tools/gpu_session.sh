#!/usr/bin/env bash
# A few minutes of a borrowed GPU machine: an H100 or H200, Python 3.12, torch 2.11, Triton 3.6, no network, none of our
# packages. It is there for 15 minutes in all, its start included, so the work is six packs of at most 270 s, one a call.
# On this machine, in the repository's root:
#
#   tools/gpu_session.sh next                  # what is due, what to carry, and the command to give
#   tools/gpu_session.sh cache                 # compile what executors will ask for to /tmp/baton-triton, with the rig
#   tools/gpu_session.sh pack ../shared/gpu    # wheels, flash-attn's smoke test and that cache go to .gpu
#   tools/gpu_session.sh rehearse [PACK ...]   # packs in the rig: without a GPU, without a network
#   tools/gpu_session.sh keep FOLDER           # what came back goes into the ledger and the tables of docs/gpu.md
#
# On the GPU machine, in a copy of the tree with `.gpu`, with a limit of 300 s, and `$OUT` the folder that comes back:
#
#   bash tools/gpu_session.sh values    # machine, a tiny generation, flash-attn, tests marked gpu, a step under memcheck
#   bash tools/gpu_session.sh bench     # the nano workload at 0.6B, profiled steps, decode steps by rows
#   bash tools/gpu_session.sh kernels   # kernels against the copy rate and flash-attn, tests at real sizes
#   bash tools/gpu_session.sh keeper    # what the keeper rests on, and what a kill costs
#   bash tools/gpu_session.sh failover  # executors that are killed and replaced under streams
#   bash tools/gpu_session.sh shapes    # steps of 8B and 30B-A3B
#
# A step that passed is skipped until its code, its command or a version changes (tests/gpu_session/ledger.jsonl has what
# passed). Each step's result is a line of $OUT/results.jsonl as soon as it ends. The exit code is the number of
# results that are not `passed`. BATON_GPU_SECONDS=200 ends a pack earlier, if less time is left on the machine.
#
# The rig (tests/rig/build.py) has the GPU machine's torch, Triton and transformers over stand-ins for CUDA's libraries,
# whose kernels compute nothing. In a rehearsal every step starts, gives its JSON and keeps to its limit; comparisons of
# values fail, as they must, tests marked slow are left out, and every result says "rehearsal": true. It takes the
# committed tree, and needs root for a network namespace without a network.
set -uo pipefail
BEGAN=$EPOCHREALTIME
cd "$(dirname "$0")/.."

CARRIED=.gpu
SITE=/tmp/baton-site
SCRATCH=/tmp/baton-gpu
export TRITON_CACHE_DIR=/tmp/baton-triton  # the same here and there: its entries name their files by their full paths
CACHE_STAMP=/tmp/baton-triton.of           # of which kernels it is

# Packages that the services and the tests need and the machine lacks, or has in a version of its own choice; in
# constraints.txt's versions. NVIDIA's bindings are not among them: those of the machine fit its driver.
PACKAGES=(structlog blake3 llguidance pynacl cffi pycparser fastapi starlette uvicorn pydantic pydantic_core annotated-types
  typing-inspection opentelemetry-api click h11 httpx python-multipart pytest pluggy iniconfig pytest-timeout hypothesis
  sortedcontainers)

pack() {  # FOLDER: with wheels/ and flash_attn_smoke_test.py
  local tags=() glibc
  for glibc in 17 24 26 27 28 31 34; do tags+=(--platform "manylinux_2_${glibc}_x86_64"); done
  mkdir -p "$CARRIED/wheels" && rm -rf "${CARRIED:?}"/*.tar.* "$CARRIED"/*.of "$CARRIED"/wheels/*
  cp "$1"/wheels/*.whl "$CARRIED/wheels/" && cp "$1/flash_attn_smoke_test.py" "$CARRIED/" || return 1
  python3 -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 --implementation cp "${tags[@]}" \
    --platform manylinux2014_x86_64 --constraint constraints.txt --dest "$CARRIED/wheels" "${PACKAGES[@]}" || return 1
  chmod -R u+w "$CARRIED"
  if [[ -d $TRITON_CACHE_DIR && -e $CACHE_STAMP ]]; then
    tar -C "$(dirname "$TRITON_CACHE_DIR")" -czf "$CARRIED/triton-cache.tar.gz" "$(basename "$TRITON_CACHE_DIR")"
    cp "$CACHE_STAMP" "$CARRIED/triton-cache.of"
  fi
  session next --carried "$CARRIED"
}

# With our packages: the Python of `make test`.
session() { "${BATON_PYTHON:-.venv/bin/python}" -m tests.gpu_session "$@"; }

install() {
  local wheels
  wheels=$(sha256sum "$CARRIED"/wheels/*.whl)
  if [[ $(cat "$SITE/.wheels" 2>/dev/null) != "$wheels" ]]; then  # a machine that was held may have others
    rm -rf "$SITE"
    python3 -m pip install --quiet --no-index --no-deps --no-compile --no-cache-dir --target "$SITE" \
      "$CARRIED"/wheels/*.whl && echo "$wheels" >"$SITE/.wheels" || return 1
  fi
  if [[ -e $CARRIED/triton-cache.tar.gz && ! -e $TRITON_CACHE_DIR ]]; then  # without it all steps take longer
    tar -C "$(dirname "$TRITON_CACHE_DIR")" -xzf "$CARRIED/triton-cache.tar.gz" || rm -rf "$TRITON_CACHE_DIR"
  fi
  export PYTHONPATH="$SITE:$PWD"
}

# The driver stops a GPU when the last process that has it open ends, and starting it again takes seconds. A process of
# its own holds it: a descriptor that the keeper inherits would keep what the keeper must not keep. Without a subshell:
# that one would hold this script's output open, too, and whoever reads it would wait.
hold_gpu() {  # DEVICE
  if [[ -e $1 ]]; then
    sleep 300 <"$1" >/dev/null 2>&1 &
  fi
}

case ${1:-} in
  next) session next --carried "$CARRIED" ;;
  keep) session keep "${2:?the folder that came back}" ;;
  pack) pack "${2:?the folder with the wheels}" ;;
  cache) rm -f "$CACHE_STAMP" && exec python3 -m tests.rig -m tests.gpu_session.cache "$CACHE_STAMP" ;;
  rehearse)
    exec python3 -m tests.rig -m tests.gpu_session.rehearsal --carried "$CARRIED" --scratch "$SCRATCH" --site "$SITE" \
      "${@:2}" ;;
  values | bench | kernels | keeper | failover | shapes)
    hold_gpu /dev/nvidia0
    install || exit 100
    exec python3 -m tests.gpu_session run "$1" --began "$BEGAN" --out "${OUT:?the folder that comes back}" \
      --carried "$CARRIED" --scratch "$SCRATCH" ${BATON_GPU_SECONDS:+--seconds "$BATON_GPU_SECONDS"} \
      ${BATON_REHEARSAL:+--rehearsal} ;;
  *) sed -n '2,/^[^#]/{/^#/p}' "$0" >&2 && exit 2 ;;
esac
