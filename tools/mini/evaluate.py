#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Held-out accuracy of a model folder, per skill, on seen and unseen wordings, thinking and direct; greedy.

  evaluate.py --heldout FILE --torch [-m DIR]                    through the PyTorch model of model.py (batched)
  evaluate.py --heldout FILE --runner 'lily generate -m models/mini --ids {ids} --temp 0 --max-tokens {max_tokens}'

A runner is a command that prints the answer to its standard output.  {ids}: the prompt as comma-separated token ids; {prompt}: its
text; {max_tokens}; each is one argument.  What it prints is scored by score.py: reasoning before "</think>" is cut off; in case the
program prints the answer alone, that is scored.  FILE comes from `data.py heldout`.  --save keeps every answer.
"""
import argparse
import json
import shlex
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import data
import score


def run_torch(items, folder, encoder, budget, batch):
    import torch

    import checkpoint
    import model as mm

    device = "cuda" if torch.cuda.is_available() else "cpu"
    c, w = checkpoint.load(folder, torch.bfloat16)
    w = {n: t.to(device) for n, t in w.items()}
    stops = torch.tensor(json.loads((Path(folder) / "generation_config.json").read_text())["eos_token_id"], device=device)
    order = sorted(range(len(items)), key=lambda i: len(items[i]["ids"]))
    n_real = encoder.tok.get_vocab_size()
    with torch.no_grad():
        for first in range(0, len(order), batch):
            group = order[first:first + batch]
            prompts = [items[i]["ids"] for i in group]
            longest = max(map(len, prompts))
            length = longest + budget
            cos, sin = mm.rope_table(c, length, device)
            ids = torch.zeros(len(group), length, dtype=torch.long)
            for r, p in enumerate(prompts):
                ids[r, :len(p)] = torch.tensor(p)
            ids, size = ids.to(device), torch.tensor([len(p) for p in prompts], device=device)
            state = mm.State(c, len(group), length, device, torch.bfloat16)
            done = torch.zeros(len(group), dtype=torch.bool, device=device)
            for t in range(length - 1):
                logits = mm.decode_step(c, w, ids[:, t], state, cos, sin)
                if t + 1 < len(prompts[0]):
                    continue
                new = logits[:, :n_real].argmax(-1)
                writing = (t + 1 >= size) & ~done
                ids[:, t + 1] = torch.where(writing, new, ids[:, t + 1])
                done |= writing & torch.isin(new, stops)
                if t >= longest and t % 8 == 0 and bool(done.all()):
                    break
            for r, i in enumerate(group):
                out = ids[r, len(prompts[r]):].tolist()
                cut = next((k for k, x in enumerate(out) if x in stops.tolist()), min(len(out), budget))
                yield i, encoder.tok.decode(out[:cut], skip_special_tokens=False)


def run_command(items, command, budget, jobs):
    def one(i):
        item = items[i]
        fields = dict(ids=",".join(map(str, item["ids"])), prompt=item["prompt"], max_tokens=str(budget))
        argv = [a.format(**fields) if a.startswith("{") else a for a in shlex.split(command)]
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace")
        if done.returncode:
            raise SystemExit(f"{argv[0]} failed on {item['id']}: {done.stderr[-500:]}")
        return i, done.stdout

    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(one, range(len(items)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--heldout", required=True)
    parser.add_argument("-m", "--model", default=data.MODEL, type=Path)
    parser.add_argument("--torch", action="store_true")
    parser.add_argument("--runner")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--budget", type=int, default=224, help="most tokens an answer may have")
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--limit", type=int, help="items of each cell")
    parser.add_argument("--skill", action="append")
    parser.add_argument("--save", help="answers as JSON lines")
    parser.add_argument("--table", help="file for the table")
    args = parser.parse_args()
    encoder = data.Encoder(args.model / "tokenizer.json")
    items = [json.loads(line) for line in open(args.heldout)]
    items = [i for i in items if (not args.limit or int(i["id"].rsplit("/", 1)[1]) < args.limit) and (not args.skill or i["skill"] in args.skill)]
    for item in items:
        item["ids"] = encoder.ids(item["prompt"])
    began = time.time()
    answers = run_torch(items, args.model, encoder, args.budget, args.batch) if args.torch else run_command(items, args.runner, args.budget, args.jobs)
    rows, valid, saved = [], [], []
    for i, text in answers:
        item = items[i]
        right = score.correct(text, item["check"], item["tools"])
        rows.append((item["skill"], item["wording"], item["mode"], right))
        if item["skill"] == "json":
            valid.append(score.valid_json(text))
        saved.append(dict(id=item["id"], right=right, answer=text, check=item["check"]))
    order = {n: k for k, n in enumerate(data.SKILLS)}
    rows.sort(key=lambda r: order[r[0]])
    text = score.table(rows)
    if len({r[1:3] for r in rows}) == 4:
        text += "\n\n" + score.target_table(rows)
    if valid:
        text += f"\n\nJSON answers that parse: {100 * sum(valid) / len(valid):.1f} % of {len(valid)}."
    print(text)
    print(f"{len(rows)} answers in {time.time() - began:.0f} s, all: {100 * sum(r[3] for r in rows) / len(rows):.1f} %")
    if args.table:
        Path(args.table).write_text(text + "\n")
    if args.save:
        with open(args.save, "w") as f:
            for s in sorted(saved, key=lambda s: s["id"]):
                f.write(json.dumps(s, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
