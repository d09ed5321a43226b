#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check.sh - whether lily works on this machine: what it has, one answer of the small model, and every
# backend against recorded answers. Needs a C library and this shell alone; an NVIDIA driver for `cuda`.
# Ends with "all checks passed" and exit status 0, or names what failed.
case $0 in */*) cd "${0%/*}" || exit 1 ;; esac
failed=""

echo "== lily doctor"
./lily doctor || failed="$failed doctor"

echo "== one answer"
answer=$(./lily generate -p "What is 12 + 30?" --no-think --temp 0)
echo "$answer"
case $answer in *42*) ;; *) failed="$failed generate" ;; esac

# Reference values are of an f64 implementation; cpu and cuda round activations to 15 or 16 bits.
golden() { # name, bound, options
    name=$1 bound=$2
    shift 2
    for file in oracle/golden-*.json; do
        echo "== $name against $file"
        ./lily eval golden "$file" -m oracle/tiny-a --max-diff "$bound" "$@" || failed="$failed $name"
    done
}
golden ref 0.0001 --backend ref
golden cpu 0.01 --backend cpu
case $(./lily --version) in
*"cuda (not here)"*) echo "== cuda: not here" ;;
*cuda*)
    golden cuda 0.05 --backend cuda
    golden cuda-sm80 0.05 --backend cuda --cpu-mask sm90a
    ;;
*) echo "== cuda: not built in" ;;
esac

if [ -n "$failed" ]; then
    echo "FAILED:$failed"
    exit 1
fi
echo "all checks passed"
