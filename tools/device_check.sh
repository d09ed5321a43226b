#!/bin/sh
# Checks and times the CUDA backend on a machine with a card: the oracle, what must be equal to the
# bit, the memory checkers, a table of kernels and of speeds; a short summary last.
#
# Use: tools/device_check.sh [BUILD] [OUT]
#   BUILD  folder with tests/test_cuda_device and bench_cuda (default build); made when missing
#   OUT    folder for the whole logs (default BUILD/device)
# Environment: SKIP names parts to leave out: tests bench batch kernels memory
set -u
cd "$(dirname "$0")/.."
BUILD=${1:-build}
OUT=${2:-$BUILD/device}
SKIP=${SKIP:-}
mkdir -p "$OUT"
[ -d "$BUILD/lib" ] && export LD_LIBRARY_PATH="$PWD/$BUILD/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
if ! [ -x "$BUILD/bench_cuda" ]; then
    make -j"$(nproc)" BUILD="$BUILD" "$BUILD/tests/test_cuda_device" "$BUILD/bench_cuda" || exit 1
fi
TEST=$BUILD/tests/test_cuda_device
BENCH=$BUILD/bench_cuda
wants() { case " $SKIP " in *" $1 "*) return 1 ;; esac; }

nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem --format=csv,noheader
if wants tests; then
    timeout 120 "$TEST" >"$OUT/tests.log" 2>&1
    echo "tests: exit $?"
fi
if wants bench; then
    timeout 150 "$BENCH" >"$OUT/bench.log" 2>&1
    echo "bench: exit $?"
fi
if wants kernels; then # four layers: three of the delta net, one of attention
    timeout 100 ncu --clock-control none --cache-control none --csv \
        --metrics gpu__time_duration.sum,dram__bytes.sum \
        "$BENCH" -m synth:qwen3.6-35b-a3b,layers=4 --profile --mask graph,chain \
        >"$OUT/kernels.csv" 2>"$OUT/kernels.log"
    echo "kernels: exit $?"
fi
if wants memory; then
    for tool in memcheck racecheck initcheck synccheck; do
        timeout 150 compute-sanitizer --tool $tool --error-exitcode 9 \
            "$TEST" 'taps*' >"$OUT/$tool.log" 2>&1
        echo "$tool: exit $?" >"$OUT/$tool.exit" &
    done
    wait
    cat "$OUT"/*.exit
fi

echo "---- summary"
[ -f "$OUT/tests.log" ] && grep -E "FAILED|ERROR|rms|PASSED|^error" "$OUT/tests.log" | head -60
[ -f "$OUT/kernels.csv" ] && python3 tools/kernel_table.py "$OUT/kernels.csv"
for tool in memcheck racecheck initcheck synccheck; do
    [ -f "$OUT/$tool.log" ] && echo "$tool: $(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY|hazard|Error' "$OUT/$tool.log" | tail -1)"
done
[ -f "$OUT/bench.log" ] && cat "$OUT/bench.log"
exit 0
