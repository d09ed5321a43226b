# SPDX-License-Identifier: Apache-2.0
"""What the engines print, as rows, and the arithmetic on rows.

A row is ("prefill", tokens) or ("decode", tokens of context before it); its figure is tokens a second. Ratios are taken
within a round, where the engines ran one after the other, and only then sorted: the machine drifts between rounds.
"""
import statistics


def peer_rows(printed):
    """Rows of llama-bench's JSON. Decode at a depth: n_depth in llama.cpp, a prompt left out of the time in ik_llama.cpp."""
    out = {}
    for test in printed:
        n_prompt, n_gen, depth = test["n_prompt"], test["n_gen"], test.get("n_depth", 0)
        row = ("decode", depth or n_prompt) if n_gen else ("prefill", n_prompt)
        if n_gen == 0 and depth or n_gen and depth and n_prompt:
            raise ValueError(f"a test of {n_prompt} + {n_gen} tokens at {depth} is no row")
        out[row] = statistics.median(test["samples_ts"])
    return out


def lily_rows(printed, prefill, decode):
    rows = {r["context"]: r for r in printed["results"]}
    return {**{("prefill", n): rows[n]["prefill_tok_s"] for n in prefill},
            **{("decode", n): rows[n]["decode_tok_s"] for n in decode}}


def lily_shares(printed, prefill, decode):
    """Shares of lily's own bound, by row."""
    rows = {r["context"]: r for r in printed["results"]}
    return {**{("prefill", n): rows[n]["prefill_bound_share"] for n in prefill},
            **{("decode", n): rows[n]["decode_bound_share"] for n in decode}}


def lily_read_gb_s(printed, decode):
    """The read rates that lily's shares of the byte bound were taken against, by row: those around its own steps."""
    rows = {r["context"]: r for r in printed["results"]}
    return {("decode", n): rows[n]["read_gb_s"] for n in decode}


def spread(values):
    """Median, least and largest of what was measured; None when nothing was."""
    values = [v for v in values if v is not None]
    if not values:
        return None
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "n": len(values)}


def ratios(ours, theirs):
    """Ours over theirs, round by round; rounds that lack either are left out."""
    return [a / b for a, b in zip(ours, theirs) if a is not None and b is not None]


def line_at(few, few_tok_s, many, many_tok_s, wanted):
    """Tokens a second at `wanted` layers: the time of a token is a line in the number of layers, known at two of them."""
    if few_tok_s is None or many_tok_s is None:
        return None
    layer_s = (1 / many_tok_s - 1 / few_tok_s) / (many - few)
    seconds = 1 / many_tok_s + (wanted - many) * layer_s
    return 1 / seconds if layer_s > 0 and seconds > 0 else None  # noise larger than the difference: no answer


def extrapolate(samples, few, many, wanted):
    """samples[layers][engine][row] = [tokens a second of each round] -> the same for `wanted` layers."""
    return {engine: {row: [line_at(few, a, many, b, wanted) for a, b in zip(samples[few][engine][row], rounds)]
                     for row, rounds in rows.items()} for engine, rows in samples[many].items()}


def summary(by_engine, ours="lily"):
    """[{kind, tokens, engines: {name: spread}, ratios: {name: spread}, best, ratio_to_best}] in the order of ours."""
    out = []
    for row, mine in by_engine[ours].items():
        others = {e: rows[row] for e, rows in by_engine.items() if e != ours and row in rows}
        entry = {"kind": row[0], "tokens": row[1], "engines": {e: spread(rows[row]) for e, rows in by_engine.items() if row in rows},
                 "ratios": {e: spread(ratios(mine, theirs)) for e, theirs in others.items()}}
        known = {e: r for e, r in entry["ratios"].items() if r}
        if known:
            entry["best"] = min(known, key=lambda e: known[e]["median"])
            entry["ratio_to_best"] = known[entry["best"]]
        out.append(entry)
    return out


def number(x):
    return f"{x:.2f}" if x < 100 else f"{x:.1f}"


def show(s):
    return f"{number(s['median'])} ({number(s['min'])}..{number(s['max'])})" if s else "-"


def table(entries, ours="lily"):
    """The summary as lines of text: speeds, then ratios of ours to each other engine."""
    engines = list(entries[0]["engines"])
    others = [e for e in engines if e != ours]
    lines = [["", *[f"{e} tok/s" for e in engines], *[f"{ours} / {e}" for e in others], "rounds"]]
    for e in entries:
        lines.append([f"{e['kind']} {'@' if e['kind'] == 'decode' else ''}{e['tokens']}", *[show(e["engines"].get(n)) for n in engines],
                      *[show(e["ratios"].get(n)) for n in others], str((e["engines"][ours] or {"n": 0})["n"])])
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join("  ".join(cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(line, widths)))
                     for line in lines)
