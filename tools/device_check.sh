#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# device_check.sh - checks and times the CUDA backend on a machine with a card, part by part; every
# part's whole log goes to a folder, a short summary to standard output.
#
# Use: tools/device_check.sh [BUILD] [OUT]
#   BUILD  folder that `make device` filled (default build); it needs no packages on the card's machine
#   OUT    folder for the logs (default BUILD/device)
# Environment
#   PARTS  which parts, in their order (default all):
#     tests    the oracle and what must be equal to the bit, in both columns (sm90a, sm80)
#     checks   doctor, one answer, recorded answers: check.sh of `make dist` over this build
#     memory   compute-sanitizer: memcheck, racecheck, initcheck, synccheck
#     wire     the server's tests that need Python's standard library and pytest alone
#     endure   2,000 greedy tokens, and 64 behind 131,072: everything finite
#     bench    speeds of the backend (bench_cuda), both columns of prefill
#     copies   slots and blocks to and from host memory, alone and beside decodes
#     report   `lily bench --backend cuda`: the table, JSON and picture
#     products prefill products alone, both columns
#     mixers   delta rule and attention of a prefill alone, both columns
#     trace    times of every kernel of a decode step inside its graph (build in BUILD/trace)
#     kernels  Nsight Compute over four layers: times and bytes
#   MODEL  of bench, copies, report, endure and trace (default synth:qwen3.6-35b-a3b)
# Exit status 1 when a part failed.
set -u
cd "$(dirname "$0")/.."
BUILD=${1:-build}
OUT=${2:-$BUILD/device}
MODEL=${MODEL:-synth:qwen3.6-35b-a3b}
PARTS=${PARTS:-tests checks memory wire endure bench copies report products mixers trace kernels}
mkdir -p "$OUT"
[ -d "$BUILD/lib" ] && export LD_LIBRARY_PATH="$PWD/$BUILD/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
failed=""

# run NAME SECONDS COMMAND...: to OUT/NAME.log; tells how it ended.
run() {
    name=$1 limit=$2
    shift 2
    timeout "$limit" "$@" >"$OUT/$name.log" 2>&1
    status=$?
    [ $status -eq 0 ] || failed="$failed $name"
    echo "$name: exit $status"
}
# show NAME [PATTERN]: lines of a log.
show() { [ -f "$OUT/$1.log" ] && grep -E "${2:-.}" "$OUT/$1.log" | tail -"${3:-40}"; }

part_tests() {
    run tests 300 "$BUILD/tests/test_cuda_device"
    show tests "FAILED|ERROR|PASSED|^error|^skipped"
}

part_checks() {
    run doctor 60 "$BUILD/lily" doctor
    show doctor "^(cuda|card|auto)|^Qwen|bounds"
    run answer 60 "$BUILD/lily" generate --backend cuda -p "What is 12 + 30?" --no-think --temp 0
    show answer
    for m in 5 129; do
        for mask in none sm90a; do
            run "golden-$m-$mask" 60 "$BUILD/lily" eval golden "$BUILD/oracle/golden-$m.json" -m tests/data/oracle/tiny-a \
                --backend cuda --cpu-mask $mask --max-diff 0.05
            show "golden-$m-$mask" "most likely|difference"
        done
    done
}

part_memory() { # racecheck sees no barriers of the kind that TMA copies end at: its findings in the sm90a column are to be read
    for tool in memcheck racecheck initcheck synccheck; do
        timeout 300 compute-sanitizer --tool $tool --error-exitcode 9 "$BUILD/tests/test_cuda_device" 'taps*' \
            >"$OUT/$tool.log" 2>&1
        echo $? >"$OUT/$tool.exit"
    done
    for tool in memcheck racecheck initcheck synccheck; do
        [ "$(cat "$OUT/$tool.exit")" = 0 ] || failed="$failed $tool"
        echo "$tool: exit $(cat "$OUT/$tool.exit"): $(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$OUT/$tool.log" | tail -1)"
    done
}

part_wire() {
    if ! python3 -c "import pytest" 2>/dev/null; then
        echo "wire: skipped: python3 has no pytest"
        return
    fi
    run wire 500 env LILY="$PWD/$BUILD/lily" LILY_BACKEND=cuda python3 -m pytest -q -rs -p no:cacheprovider \
        tests/py/test_server.py tests/py/test_server_cases.py tests/py/test_server_edges.py tests/py/test_server_exact.py \
        tests/py/test_server_load.py
    show wire "^FAILED|^ERROR|passed|failed" 20
}

part_endure() {
    run endure 200 "$BUILD/bench_cuda" --endure -m "$MODEL"
    show endure
}

part_bench() {
    run bench 250 "$BUILD/bench_cuda" --long -m "$MODEL"
    show bench
    run bench-sm80 200 "$BUILD/bench_cuda" --mask sm90a -m "$MODEL"
    show bench-sm80 "column|prefill"
}

part_copies() {
    run copies 150 "$BUILD/bench_cuda" --copy -m "$MODEL"
    show copies
}

part_report() {
    run report 400 "$BUILD/lily" bench --backend cuda -m "$MODEL" --contexts 256,512,4096,32768,131072 --fill-above 32768 \
        --json "$OUT/cuda.json" --csv "$OUT/cuda.csv" --svg "$OUT/cuda.svg"
    show report "" 20
    run report-32 300 "$BUILD/lily" bench --backend cuda -m "$MODEL" --contexts 4096 --batch 32 --json "$OUT/cuda-32.json"
    show report-32 "" 6
}

part_products() {
    run products 200 "$BUILD/bench_cuda" --matmul
    show products
}

part_mixers() {
    run mixers 100 "$BUILD/bench_cuda_recur" --recur --attn
    run mixers-sm80 100 "$BUILD/bench_cuda_recur" --recur --attn --sm80
    show mixers
    show mixers-sm80
}

part_trace() {
    run trace 150 "$BUILD/trace/bench_cuda" --trace -m "$MODEL"
    run trace-mixers 100 "$BUILD/trace/bench_cuda_recur" --recur --attn
    show trace "" 90
}

part_kernels() { # four layers: three of the delta net, one of attention
    if ! command -v ncu >/dev/null; then
        echo "kernels: skipped: ncu is not installed"
        return
    fi
    run kernels 200 ncu --clock-control none --cache-control none --csv \
        --metrics gpu__time_duration.sum,dram__bytes.sum \
        "$BUILD/bench_cuda" -m synth:qwen3.6-35b-a3b,layers=4 --profile --mask graph,chain
    python3 tools/kernel_table.py "$OUT/kernels.log"
}

nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,memory.total --format=csv,noheader
for part in $PARTS; do
    echo "---- $part"
    "part_$part"
done
[ -z "$failed" ] && echo "device check: everything passed" && exit 0
echo "device check: FAILED:$failed"
exit 1
