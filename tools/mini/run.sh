#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# run.sh WORK STEPS SECONDS [SEED] - one training call on a machine with a CUDA GPU: makes the shards beside the training, goes on
# from WORK/state.pt if there is one, ends after about SECONDS in all, writes the 4-bit model to WORK/model.  When all STEPS are done it
# evaluates, if EVAL_SECONDS are left; a call after the last step only evaluates.
# JOBS: processes that make shards (default: the cores but three).  PER_CELL: held-out questions a cell.  TORCHINDUCTOR_CACHE_DIR: where
# compiled kernels are kept (default WORK/inductor); a folder brought from an earlier machine of the same kind saves the compilation.
set -eu
began=$(date +%s)
here=$(cd "$(dirname "$0")" && pwd)
work=$1 steps=$2 seconds=$3 seed=${4:-0}
cores=$(nproc)
jobs=${JOBS:-$(( cores > 4 ? cores - 3 : 1 ))} rows=${ROWS_PER_SHARD:-512} cell=${PER_CELL:-64} reserve=${EVAL_SECONDS:-100}
export TORCHINDUCTOR_CACHE_DIR="${TORCHINDUCTOR_CACHE_DIR:-$work/inductor}"
export TRITON_CACHE_DIR="${TRITON_CACHE_DIR:-$TORCHINDUCTOR_CACHE_DIR/triton}"
export TORCHINDUCTOR_FX_GRAPH_CACHE=1 TORCHINDUCTOR_AUTOGRAD_CACHE=1 PYTHONUNBUFFERED=1 OMP_NUM_THREADS=2 TOKENIZERS_PARALLELISM=false
mkdir -p "$work"
left() { echo $(( seconds - ($(date +%s) - began) )); }
finished() { [ -f "$work/train.log" ] && grep -q "^step $steps loss" "$work/train.log"; }

[ -f "$work/heldout.jsonl" ] || { python3 "$here/data.py" heldout -o "$work/heldout.part" --per-cell "$cell" && mv "$work/heldout.part" "$work/heldout.jsonl"; } &
held=$!
if ! finished; then
    last=$(( (steps * 16 + rows - 1) / rows - 1 ))
    timeout "$seconds" nice python3 "$here/data.py" shards -o "$work/shards" --first 0 --last $last --rows "$rows" --jobs "$jobs" >"$work/shards.log" 2>&1 &
    maker=$!
    python3 "$here/data.py" shards -o "$work/shards" --first 9999 --last 9999 --rows 64 >/dev/null
    python3 "$here/train.py" --shards "$work/shards" --work "$work" --steps "$steps" --seconds $(( $(left) - 25 )) --seed "$seed" --out "$work/model" ${TRAIN_FLAGS:-} 2>&1 | tee -a "$work/train.log"
    kill "$maker" 2>/dev/null || true
fi
wait "$held"
if ! finished; then
    echo "not all of the $steps steps are done: call again"
elif [ "$(left)" -lt "$reserve" ]; then
    echo "all $steps steps are done, $(left) s are left: call again to evaluate"
else
    python3 "$here/evaluate.py" --heldout "$work/heldout.jsonl" --torch -m "$work/model" --batch 2048 --table "$work/table.md" --save "$work/answers.jsonl"
fi
