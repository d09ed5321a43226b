#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Decoding beside one busy process, against decoding undisturbed, in turns on one server.

  bench_neighbour.py [--program build/lily] [--model synth:qwen3.6-35b-a3b,layers=8] [--threads 2] [--turns 6] [--tokens 64]

A turn is one answer without and one with a neighbour that does nothing but count; which comes first alternates. The share of a turn
is the second's tokens a second over the first's; the median over the turns is the figure. Other work on the machine disturbs both:
what it took of the processors stands beside each speed.
"""
import argparse
import contextlib
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import threading
import time

from bench_program import find_program

ROOT = pathlib.Path(__file__).resolve().parent.parent
TICK = os.sysconf("SC_CLK_TCK")


def busy_seconds():
    """Processor time that all CPUs have spent on anything."""
    fields = [int(x) for x in pathlib.Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / TICK


def process_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICK


@contextlib.contextmanager
def serving(program, *args):
    """A server that is ready: its address and its number."""
    server = subprocess.Popen([program, "serve", "--port", "0", *map(str, args)], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    try:
        url, lines = None, []
        for line in server.stderr:
            lines.append(line)
            if found := re.search(r"listening on (http://\S+?)/? ", line):
                url = found[1]
            if " ready: " in line:
                break
        else:
            sys.exit("".join(lines))
        threading.Thread(target=server.stderr.read, daemon=True).start()  # so that it can go on writing
        yield url, server.pid
    finally:
        server.terminate()
        server.wait()


def answer(program, url, tokens, server, neighbour):
    """One answer's tokens a second and shares of one CPU: of the neighbour, of everything else on the machine."""
    own = [p for p in (server, neighbour) if p]
    before = busy_seconds(), [process_seconds(p) for p in own], os.times(), time.monotonic()
    done = subprocess.run([program, "bench", "--serve", url, "--contexts", "256", "--concurrency", "1", "--steps", str(tokens), "--rounds", "1",
                           "--json", "-"], capture_output=True, text=True, check=True)
    now = os.times()
    wall = time.monotonic() - before[3]
    used = [process_seconds(p) - b for p, b in zip(own, before[1])]
    client = sum(now[:4]) - sum(before[2][:4])
    others = (busy_seconds() - before[0] - sum(used) - client) / wall
    return json.loads(done.stdout)["results"][0]["stream_tok_s"]["median"], used[1] / wall if neighbour else 0.0, others


def some_answer(*args):
    """The same of an answer with a speed: one that ends with its first token has none."""
    for _ in range(20):
        found = answer(*args)
        if found[0] > 0:
            return found
    sys.exit("bench_neighbour.py: every answer ended with its first token")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=str(ROOT / "build/lily"))
    parser.add_argument("--model", default="synth:qwen3.6-35b-a3b,layers=8")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=64)
    options = parser.parse_args()
    program = find_program(options.program)
    shares, speeds = [], {False: [], True: []}
    with serving(program, "-m", options.model, "--threads", options.threads, "--ctx", 2048, "--max-seqs", 1) as (url, pid):
        answer(program, url, 8, pid, None)
        for turn in range(options.turns):
            line = {}
            for is_busy in ((False, True), (True, False))[turn % 2]:
                neighbour = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if is_busy else None
                try:
                    line[is_busy] = some_answer(program, url, options.tokens, pid, neighbour and neighbour.pid)
                finally:
                    if neighbour:
                        neighbour.kill()
                        neighbour.wait()
                speeds[is_busy].append(line[is_busy][0])
            shares.append(line[True][0] / line[False][0])
            print(f"turn {turn + 1}: alone {line[False][0]:6.2f} tok/s (others take {line[False][2]:.2f} CPUs), beside a neighbour "
                  f"{line[True][0]:6.2f} (it takes {line[True][1]:.2f}, others {line[True][2]:.2f}): {100 * shares[-1]:.0f}%", flush=True)
    for is_busy, name in ((False, "alone"), (True, "beside a neighbour")):
        s = speeds[is_busy]
        print(f"{name}: median {statistics.median(s):.2f} tok/s ({min(s):.2f} .. {max(s):.2f})")
    print(f"share: median {100 * statistics.median(shares):.0f}% ({100 * min(shares):.0f} .. {100 * max(shares):.0f})")


if __name__ == "__main__":
    main()
