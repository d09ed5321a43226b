#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# run.sh WORK STEPS SECONDS [SEED] - one training call on a machine with a CUDA GPU: makes the shards beside the training, goes on
# from WORK/state.pt if there is one, stops after SECONDS, writes the 4-bit model to WORK/model.  When all STEPS are done, evaluates.
# JOBS: processes that make shards; too few and the training waits for them (a process makes 80,000 to 300,000 tokens a second).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
work=$1 steps=$2 seconds=$3 seed=${4:-0}
jobs=${JOBS:-12} rows=${ROWS_PER_SHARD:-4096} cell=${PER_CELL:-64}
export PYTHONUNBUFFERED=1 OMP_NUM_THREADS=2 TOKENIZERS_PARALLELISM=false TORCHINDUCTOR_CACHE_DIR="$work/inductor"
mkdir -p "$work"
last=$(( (steps * 16 + rows - 1) / rows - 1 ))
python3 "$here/data.py" shards -o "$work/shards" --first 9999 --last 9999 --rows 64 >/dev/null
timeout "$seconds" nice python3 "$here/data.py" shards -o "$work/shards" --first 0 --last $last --rows "$rows" --jobs "$jobs" >"$work/shards.log" 2>&1 &
maker=$!
[ -f "$work/heldout.jsonl" ] || python3 "$here/data.py" heldout -o "$work/heldout.jsonl" --per-cell "$cell" &
held=$!
python3 "$here/train.py" --shards "$work/shards" --work "$work" --steps "$steps" --seconds "$seconds" --seed "$seed" --out "$work/model" ${TRAIN_FLAGS:-} 2>&1 | tee -a "$work/train.log"
kill "$maker" 2>/dev/null || true
wait "$held"
if grep -q "step $steps loss" "$work/train.log"; then
    python3 "$here/evaluate.py" --heldout "$work/heldout.jsonl" --torch -m "$work/model" --batch 2048 --table "$work/table.md" --save "$work/answers.jsonl"
fi
