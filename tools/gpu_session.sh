#!/usr/bin/env bash
# Half an hour of a borrowed H100 or H200 (Python 3.12, torch 2.11, Triton 3.6, no network, without our packages), in
# three calls of at most ten minutes. On this machine, in the repository's root, after the last change of kernels/gpu:
#
#   tools/gpu_session.sh cache                 # compile what the GPU will ask for to /tmp/baton-triton, with the rig
#   tools/gpu_session.sh pack ../shared/gpu    # wheels, flash-attn's smoke test and that cache go to .gpu
#   tools/gpu_session.sh rehearse              # all three calls in the rig: without a GPU, without a network
#
# Then on the GPU machine, with `.gpu` carried along, a limit of 600 s, and `$OUT` the folder that comes back:
#
#   bash tools/gpu_session.sh first     # versions, flash-attn's smoke test, a tiny generation, all tests marked gpu
#   bash tools/gpu_session.sh second    # bench_gpu.py with Triton's attention and with flash-attn, bench_kernels.py
#   bash tools/gpu_session.sh third     # what a keeper rests on, failed tests again, transformers, swaps
#
# As device tool: run(command="bash tools/gpu_session.sh first", carry=[".gpu"], timeout_s=600). Each step's JSON is in
# $OUT, and $OUT/session.json has all of them. A call goes on where the last one stopped: by /tmp/baton-gpu on a machine
# that was held, and on another one if $OUT/state.tar.gz was copied to .gpu. `BATON_GPU_FRESH=1` forgets all. A call ends
# by itself after 8.5, 9 and 9.5 minutes, and its exit code is the number of its steps that are not done.
# If less time than that is left on the machine, BATON_GPU_SECONDS=400 ends a call earlier.
#
# The rig (tests/rig/build.py) has the GPU machine's torch, Triton and transformers over stand-ins for CUDA's libraries,
# whose kernels compute nothing. In a rehearsal every step starts, writes its JSON and keeps to its limit; comparisons
# of values fail, as they must, and every JSON says "rehearsal": true. It takes the committed tree, and needs root for a
# network namespace without a network. BATON_GPU_SECONDS shortens its calls, too.
set -uo pipefail
BEGAN=$EPOCHREALTIME
cd "$(dirname "$0")/.."

CARRIED=.gpu
SITE=/tmp/baton-site
SCRATCH=/tmp/baton-gpu
export TRITON_CACHE_DIR=/tmp/baton-triton  # the same here and there: its entries name their files by their full paths
MOST_BYTES=$((64 * 2**20))                 # of what travels: the tree and .gpu

# Packages that the services and the tests need and the machine lacks, in constraints.txt's versions.
PACKAGES=(structlog llguidance pynacl cffi pycparser fastapi starlette uvicorn pydantic pydantic_core annotated-types
  typing-inspection click h11 httpx python-multipart pytest pluggy iniconfig pytest-timeout hypothesis sortedcontainers
  cuda-bindings cuda-pathfinder)

pack() {  # FOLDER: with wheels/ and flash_attn_smoke_test.py
  local tags=() glibc
  for glibc in 17 24 26 27 28 31 34; do tags+=(--platform "manylinux_2_${glibc}_x86_64"); done
  mkdir -p "$CARRIED/wheels" && rm -rf "${CARRIED:?}"/*.tar.* "$CARRIED"/wheels/*
  cp "$1"/wheels/*.whl "$CARRIED/wheels/" && cp "$1/flash_attn_smoke_test.py" "$CARRIED/" || return 1
  python3 -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 --implementation cp "${tags[@]}" \
    --platform manylinux2014_x86_64 --constraint constraints.txt --dest "$CARRIED/wheels" "${PACKAGES[@]}" || return 1
  chmod -R u+w "$CARRIED"
  if [[ -d $TRITON_CACHE_DIR ]]; then
    tar -C "$(dirname "$TRITON_CACHE_DIR")" -cJf "$CARRIED/triton-cache.tar.xz" "$(basename "$TRITON_CACHE_DIR")"
  else
    echo "no $TRITON_CACHE_DIR: the GPU machine will compile each kernel (tools/gpu_session.sh cache)" >&2
  fi
  du -sh "$CARRIED"
}

install() {
  [[ ${BATON_GPU_FRESH:-} != 1 ]] || rm -rf "$SCRATCH" "$CARRIED/state.tar.gz"
  local wheels
  wheels=$(sha256sum "$CARRIED"/wheels/*.whl)
  if [[ $(cat "$SITE/.wheels" 2>/dev/null) != "$wheels" ]]; then  # a machine that was held may have others
    rm -rf "$SITE"
    python3 -m pip install --quiet --no-index --no-deps --no-compile --no-cache-dir --target "$SITE" \
      "$CARRIED"/wheels/*.whl && echo "$wheels" >"$SITE/.wheels" || return 1
  fi
  if [[ -e $CARRIED/triton-cache.tar.xz ]]; then
    tar -C "$(dirname "$TRITON_CACHE_DIR")" -xJf "$CARRIED/triton-cache.tar.xz" || return 1
  fi
  export PYTHONPATH="$SITE:$PWD"
}

case ${1:-} in
  pack) pack "${2:?the folder with the wheels}" ;;
  cache) exec python3 -m tests.rig -m tests.gpu_session.cache ;;
  rehearse)
    exec python3 -m tests.rig -m tests.gpu_session.rehearsal --carried "$CARRIED" --scratch "$SCRATCH" --site "$SITE" \
      --most-bytes "$MOST_BYTES" "${@:2}" ;;
  first | second | third)
    install || exit 100
    exec python3 -m tests.gpu_session "$1" --began "$BEGAN" --out "${OUT:?the folder that comes back}" \
      --carried "$CARRIED" --scratch "$SCRATCH" ${BATON_GPU_SECONDS:+--seconds "$BATON_GPU_SECONDS"} \
      ${BATON_REHEARSAL:+--rehearsal} ;;
  *) sed -n '2,/^[^#]/{/^#/p}' "$0" >&2 && exit 2 ;;
esac
