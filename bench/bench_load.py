#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reading and packing a checkpoint, against a plain read of the same bytes, in turns.

  bench_load.py [--program build/lily] [--model DIR] [--layers 1] [--threads N] [--turns 5] [--states cold,warm] [--other PROGRAM]

Without --model a folder of the full shape with --layers layers is written into a temporary folder (1: 1.1 GB to load) and removed behind it.
cold: the files' pages are dropped from the page cache before each of them; warm: all are in it. The plain read is one thread that
reads the tensors that are loaded (not a vision tower) in the order of the file into one buffer of 8 MiB; beside it stands the same by
as many threads as load, 256 MiB at a time. --other is a second program to be measured in the same turns.

In a virtual machine memory that was free for some seconds may have gone back to the host, and comes from there page by page again, more
slowly than any disk. So before each of them two and a half times the weights (the copy, the page cache) are touched and given back, twice
(--fresh: they are not); the rates stand there too, the second of memory that is there.
"""
import argparse
import concurrent.futures
import json
import mmap
import os
import pathlib
import re
import resource
import statistics
import struct
import subprocess
import tempfile
import time

from bench_program import find_program

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUFFER = 8 << 20
PIECE = 256 << 20  # of a file, for one of several threads


def read_range(path, begin, end, buffer):
    fd = os.open(path, os.O_RDONLY)
    try:
        while begin < end:
            n = os.preadv(fd, [memoryview(buffer)[:min(BUFFER, end - begin)]], begin)
            begin += n
    finally:
        os.close(fd)


def pieces_of(path):
    """Places of a file that are loaded, in its order: (path, begin, end)."""
    with open(path, "rb") as f:
        (n,) = struct.unpack("<Q", f.read(8))
        header = json.loads(f.read(n))
    places = sorted(t["data_offsets"] for name, t in header.items()
                    if name != "__metadata__" and not name.startswith(("vision_tower.", "model.visual.", "mtp.", "language_model.mtp.")))
    joined = []
    for begin, end in places:
        if joined and joined[-1][1] == begin:
            joined[-1][1] = end
        else:
            joined.append([begin, end])
    return [(path, 8 + n + at, 8 + n + min(at + PIECE, end)) for begin, end in joined for at in range(begin, end, PIECE)]


def plain_read(pieces, n_threads):
    """Seconds to read all of them."""
    buffers = [mmap.mmap(-1, BUFFER) for _ in range(n_threads)]
    for b in buffers:
        b[:] = bytes(BUFFER)  # its pages are there before the clock starts
    start = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(n_threads) as pool:
        def work(i):
            for piece in pieces[i::n_threads]:
                read_range(*piece, buffers[i])
        list(pool.map(work, range(n_threads)))
    return time.monotonic() - start


def load(program, folder, threads):
    """Seconds that the program takes to open the folder, its peak memory over the plan."""
    done = subprocess.run([program, "bench", "-m", str(folder), "--contexts", "1", "--steps", "1", "--rounds", "1", "--meter-mb", "16",
                           "--json", "-", "--threads", str(threads)], capture_output=True, text=True, check=True)
    seconds = float(re.search(r"loaded [\d.]+ GB in ([\d.]+) s", done.stderr).group(1))
    return max(seconds, 0.005), json.loads(done.stdout)["results"][0]["peak_over_plan"]


def touch(size):
    """Bytes a second of huge pages that nobody has touched."""
    start = time.monotonic()
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    for at in range(0, size, 4096):
        memory[at] = 1
    seconds = time.monotonic() - start
    memory.close()
    return size / seconds


def prepare(files, pieces, state):
    if state == "warm":
        plain_read(pieces, 1)
    for p in files if state == "cold" else ():
        fd = os.open(p, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def disk_bytes():
    """Read from disks by this process and the children that have ended."""
    return 512 * sum(resource.getrusage(who).ru_inblock for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def measure(folder, options):
    files = sorted(folder.glob("*.safetensors"))
    pieces = [piece for p in files for piece in pieces_of(p)]
    size = sum(end - begin for _, begin, end in pieces)
    programs = [p for p in (options.program, options.other) if p]
    print(f"{size * 1e-9:.2f} GB in {len(files)} files, {options.threads} threads")
    for state in options.states.split(","):
        jobs = {"plain read": lambda: (plain_read(pieces, 1), None),
                "plain read by all threads": lambda: (plain_read(pieces, options.threads), None)}
        for p in programs:
            jobs[p] = lambda p=p: load(p, folder, options.threads)
        times = {name: [] for name in jobs}
        for turn in range(options.turns):
            names = list(jobs)[turn % len(jobs):] + list(jobs)[:turn % len(jobs)]
            for name in names:
                prepare(files, pieces, state)
                note = "" if options.fresh else f" (memory {touch(5 * size // 2) * 1e-9:.2f}, then {touch(5 * size // 2) * 1e-9:.2f} GB/s)"
                before = disk_bytes()
                seconds, peak = jobs[name]()
                times[name].append(seconds)
                print(f"  {state} {turn + 1}: {name}: {seconds:.2f} s, {size * 1e-9 / seconds:.2f} GB/s, {(disk_bytes() - before) * 1e-9:.2f} GB "
                      f"from disk{f', peak {peak:.3f} of the plan' if peak else ''}{note}", flush=True)
        for name in list(jobs)[1:]:
            ratios = [b / a for a, b in zip(times["plain read"], times[name])]
            print(f"{state}: {name}: {statistics.median(times[name]):.2f} s, {statistics.median(ratios):.2f} times the plain read's "
                  f"{statistics.median(times['plain read']):.2f} s ({min(ratios):.2f} .. {max(ratios):.2f})", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=str(ROOT / "build/lily"))
    parser.add_argument("--other")
    parser.add_argument("--model")
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--states", default="cold,warm")
    parser.add_argument("--fresh", action="store_true")
    options = parser.parse_args()
    options.program = find_program(options.program)
    options.other = options.other and find_program(options.other)
    if options.model:
        return measure(pathlib.Path(options.model), options)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([options.program, "synth", "--shape", "qwen3.6-35b-a3b", "--layers", str(options.layers), "-o", folder, "--force"], check=True,
                       stdout=subprocess.DEVNULL)
        return measure(pathlib.Path(folder), options)


if __name__ == "__main__":
    main()
