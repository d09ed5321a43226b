#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The server measured over HTTP.

  bench_serve.py [--program build/lily] [--model SPEC] [--small SPEC] [--tokens 64] [--prompt 128]
                 [--concurrency 1,2,4,8] [--serve OPTIONS] [--clients 200] [--seconds 60] [--parts alone,streams,cpu,load] [--json OUT]

alone    tokens a second of one streamed answer beside `lily generate` with the same prompt and model
streams  `lily bench --serve` for each concurrency: tokens a second together, time to the first token, gaps between two tokens
cpu      processor time of a streamed token: a streamed answer of the small model less the same answer sent whole
load     many clients for some seconds, streams mixed with hang-ups: statuses and memory beside the plan

Rounds alternate where two things are compared; medians and extremes are printed.
"""
import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time

from bench_program import find_program

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/py"))


def tokens_of(server, body):
    """One streamed completion: the moments at which its events came, and its usage."""
    data = json.dumps({**body, "stream": True, "stream_options": {"include_usage": True}}).encode()
    times, rest, usage = [], b"", None
    with server.connect(3600) as s:
        start = time.perf_counter()
        # HTTP/1.0: the bytes of the body alone, in no chunks
        s.sendall(server.head("POST", "/v1/completions", None, len(data)).replace(b"HTTP/1.1", b"HTTP/1.0") + data)
        while b"data: [DONE]" not in rest:
            piece = s.recv(1 << 16)
            now = time.perf_counter()
            if not piece:
                raise RuntimeError(rest[-300:].decode(errors="replace"))
            *whole, rest = (rest + piece).split(b"\n\n")
            for event in whole:
                at = event.find(b"data: {")
                if at >= 0:
                    v = json.loads(event[at + 6:])
                    usage = v.get("usage") or usage
                    if v.get("error"):
                        raise RuntimeError(v["error"]["message"])
                    if v["choices"] and v["choices"][0]["text"]:
                        times.append(now)
            if whole and whole[-1].endswith(b"data: [DONE]"):
                break
    return start, times, usage


def body_of(options, i=0):
    ids = [(j * 7 + i * 13) % 90 + 33 for j in range(options.prompt)]
    return {"prompt": ids, "max_tokens": options.tokens, "temperature": 0, "ignore_eos": True}


def decode_rate(times, n):
    return (n - 1) / (times[-1] - times[0]) if len(times) > 1 else 0.0


def show(name, values, unit):
    values = sorted(values)
    print(f"{name:34} {statistics.median(values):10.3f} ({values[0]:.3f} .. {values[-1]:.3f}) {unit}", flush=True)
    return {"median": statistics.median(values), "min": values[0], "max": values[-1]}


def alone(server, options, out):
    served, direct = [], []
    body = body_of(options)
    for _ in range(options.rounds):
        _, times, usage = tokens_of(server, body)
        served.append(decode_rate(times, usage["completion_tokens"]))
        done = subprocess.run([options.program, "generate", "-m", options.model, "--ids", ",".join(map(str, body["prompt"])),
                               "--max-tokens", str(options.tokens), "--temp", "0", "--ignore-eos", "--json"],
                              capture_output=True, text=True, check=True)
        direct.append(json.loads(done.stdout)["decode_tok_s"])
    out["alone"] = {"served": show("alone over HTTP", served, "tok/s"), "direct": show("lily generate", direct, "tok/s")}
    out["alone"]["share"] = out["alone"]["served"]["median"] / out["alone"]["direct"]["median"]
    print(f"{'share':34} {100 * out['alone']['share']:10.1f} %")


def streams(server, options, out):
    """By `lily bench --serve`: prompts of one token show decoding alone, the others what prompts that come in cost."""
    done = subprocess.run([options.program, "bench", "--serve", server.url, "--contexts", f"1,{options.prompt}", "--concurrency",
                           ",".join(map(str, options.concurrency)), "--steps", str(options.tokens), "--rounds", str(options.rounds),
                           "--json", "-"], capture_output=True, text=True, check=True)
    out["streams"] = json.loads(done.stdout)["results"]
    for r in out["streams"]:
        first, gap = r["first_token_ms"], r["gap_ms"]
        print(f"{'{concurrency} at once, prompts of {prompt_tokens}'.format(**r):34} {r['tok_s']:10.3f} tok/s together; first token "
              f"{first['median']:.1f} ms (p99 {first['p99']:.1f}); gaps {gap['median']:.2f} ms, p99 {gap['p99']:.2f} "
              f"({gap['p99'] / gap['median']:.1f} times), max {gap['max']:.2f}", flush=True)


def cpu_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cpu(options, out):
    from serving import Server
    n, per = 2000, []
    with Server("--threads", "1", "--ctx", "8192", model=options.small) as server:
        body = {"prompt": [65] * 8, "max_tokens": n, "temperature": 0, "ignore_eos": True}
        for _ in range(options.rounds):
            marks = [cpu_seconds(server.process.pid)]
            for _ in range(5):
                tokens_of(server, body)
            marks.append(cpu_seconds(server.process.pid))
            for _ in range(5):
                server.post("/v1/completions", body, timeout=3600)
            marks.append(cpu_seconds(server.process.pid))
            per.append(((marks[1] - marks[0]) - (marks[2] - marks[1])) / (5 * n) * 1e6)
    out["cpu_us_per_token"] = show("processor time of a streamed token", per, "us")


def load(options, out):
    env = {**os.environ, "LILY": options.program, "LILY_LOAD_SECONDS": str(options.seconds),
           "LILY_LOAD_CLIENTS": str(options.clients)}
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-s", str(ROOT / "tests/py/test_server_load.py")], env=env,
                          capture_output=True, text=True)
    report = re.search(r"^load .*$", done.stdout, flags=re.M)
    print(f"{options.clients} clients for {options.seconds} s: {'good' if done.returncode == 0 else 'FAILED'}; "
          + (report.group() if report else done.stdout[-1500:]))
    out["load"] = {"is_good": done.returncode == 0, "report": report.group() if report else None}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=str(ROOT / "build/lily"))
    parser.add_argument("--model", default="synth:qwen3.6-35b-a3b,layers=8")
    parser.add_argument("--small", default="synth:micro")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--concurrency", type=lambda s: [int(x) for x in s.split(",")], default=[1, 2, 4, 8])
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--serve", default="", help="more options of `lily serve`, as one word")
    parser.add_argument("--parts", default="alone,streams,cpu,load")
    parser.add_argument("--json")
    options = parser.parse_args()
    options.program = find_program(options.program)
    os.environ["LILY"] = options.program
    from serving import Server
    parts, out = options.parts.split(","), {"model": options.model}
    if {"alone", "streams"} & set(parts):
        with Server("--max-seqs", max(8, *options.concurrency), "--no-cache", *options.serve.split(), wait=False,
                    model=options.model) as server:
            server.wait_for(" ready: ", 1800)
            if "alone" in parts:
                alone(server, options, out)
            if "streams" in parts:
                streams(server, options, out)
    if "cpu" in parts:
        cpu(options, out)
    if "load" in parts:
        load(options, out)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    main()
