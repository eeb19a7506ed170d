#!/usr/bin/env bash
# What to run on a borrowed GPU machine (an H200 with Python 3.12, torch 2.11 and Triton 3.6, without our packages), in
# calls of less than ten minutes each. First, once, on this machine in the repository's root:
#
#   echo /.gpu/ >>.git/info/exclude
#   tools/gpu_session.sh pack ../shared/gpu      # wheels and the smoke test of flash-attn go to .gpu
#
# Then on the GPU machine, each call with `.gpu` carried along, a limit of 600 s, and `$OUT` the folder that comes back:
#
#   bash tools/gpu_session.sh tests      # versions, flash-attn's smoke test, all tests marked gpu
#   bash tools/gpu_session.sh kernels    # bench_kernels.py
#   bash tools/gpu_session.sh bench      # bench_gpu.py at 0.6B: beside transformers, then with our own attention
#   bash tools/gpu_session.sh bench-8b   # the same at 8B
#
# As device tool: run(command="bash tools/gpu_session.sh tests", carry=[".gpu"], timeout_s=600). A step's output goes to
# $OUT/STEP.log, and a benchmark's JSON lines go to $OUT/STEP.jsonl. After a step that fails the other steps still run;
# the exit code is the number of failed steps.
set -uo pipefail
cd "$(dirname "$0")/.."

CARRIED=.gpu
SITE=/tmp/site
FAILED=0

# Packages that the services, the tests and flash-attn need and the machine may lack, in constraints.txt's versions.
PACKAGES=(click structlog prometheus_client pytest pluggy iniconfig Pygments pytest-timeout hypothesis sortedcontainers
  fastapi starlette annotated-doc uvicorn h11 pydantic pydantic_core annotated-types typing-inspection)

pack() {  # FOLDER: with wheels/ and flash_attn_smoke_test.py
  local tags=() glibc
  for glibc in 17 24 26 27 28 31 34; do tags+=(--platform "manylinux_2_${glibc}_x86_64"); done
  mkdir -p "$CARRIED" && rm -f "$CARRIED"/*
  cp "$1"/wheels/*.whl "$1/flash_attn_smoke_test.py" "$CARRIED/"
  python3 -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 --implementation cp "${tags[@]}" \
    --platform manylinux2014_x86_64 --constraint constraints.txt --dest "$CARRIED" "${PACKAGES[@]}" einops
  chmod u+w "$CARRIED"/* && du -sh "$CARRIED"
}

install() {
  python3 -m pip install --quiet --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$SITE" \
    "$CARRIED"/*.whl || exit 1
  export PYTHONPATH="$SITE:$PWD" PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1
}

step() {  # NAME LIMIT_S COMMAND...
  local name=$1 limit=$2 began=$SECONDS code
  shift 2
  timeout --kill-after=10 "$limit" "$@" >"$OUT/$name.out" 2>"$OUT/$name.log"
  code=$?
  if [[ $name == bench* ]]; then
    mv "$OUT/$name.out" "$OUT/$name.jsonl"
  else
    cat "$OUT/$name.out" >>"$OUT/$name.log" && rm "$OUT/$name.out"
  fi
  [[ $code == 0 ]] || FAILED=$((FAILED + 1))
  echo "=== $name: exit code $code after $((SECONDS - began)) s"
  tail -n 25 "$OUT/$name.log"
}

tests() {
  nvidia-smi >"$OUT/machine.log" 2>&1
  python3 -m pip list >>"$OUT/machine.log" 2>/dev/null
  step flash_attn 100 python3 "$CARRIED/flash_attn_smoke_test.py"
  # Only files with such tests: other files need packages that the machine does not have.
  mapfile -t files < <(grep -rlE 'mark\.gpu\b' tests --include='test_*.py')
  step gpu_tests 430 python3 -m pytest -m gpu --timeout=200 -p no:cacheprovider --durations=10 "${files[@]}"
}

kernels() {
  step bench_kernels 560 python3 benchmarks/bench_kernels.py
}

bench() {  # MODEL
  local weights=/tmp/checkpoint_$1 out=/tmp/out_$1
  step checkpoint 60 python3 -m benchmarks.rig.checkpoints "$1" "$weights"
  step "bench_$1" 370 python3 benchmarks/bench_gpu.py --model "$1" --checkpoint "$weights" --peer transformers --out "$out"
  tar -czf "$OUT/services_$1.tar.gz" -C "$out" .  # the services' logs, and the profiler's traces
  step "bench_$1_triton" 140 python3 benchmarks/bench_gpu.py --model "$1" --checkpoint "$weights" --attention triton \
    --profile-steps 0
}

case ${1:-} in
  pack) pack "${2:?the folder with the wheels}" ;;
  tests | kernels) install && "$1" ;;
  bench) install && bench 0.6B ;;
  bench-8b) install && bench 8B ;;
  *) sed -n '2,17p' "$0" >&2 && exit 2 ;;
esac
exit "$FAILED"
