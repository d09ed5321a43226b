#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains the mini model on shards of data.py, goes on from a checkpoint, writes the quantised model folder.

  train.py --shards DIR --work DIR --steps N [--seconds S] [--out DIR]

A call stops after --seconds, or when it is told to end, and saves WORK/state.pt, which it also does every two minutes; the next
call with the same --work goes on there.  The last third of the steps
computes with fake-quantised weights.  --out receives the 4-bit model each time a call ends.  One step is one CUDA graph: forward,
backward and both optimisers (Muon on the matrices, Adam on embedding, routers, gates and vectors).
"""
import argparse
import json
import math
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import torch

import checkpoint
import data
import model as mm
import quant

ROWS = 16               # rows of data.ROW tokens a step
PROMPT_WEIGHT = 0.05    # loss weight of tokens that are not answers
BALANCE = 0.01
MUON_LR, MUON_MOMENTUM, MUON_DECAY = 0.02, 0.95, 0.01
ADAM_LR, ADAM_B1, ADAM_B2 = 3e-3, 0.9, 0.98
GAIN_PULL = 0.3         # pulls norm gains towards 1, as a decoupled decay times the Adam rate
WARMUP, FINAL_LR = 200, 0.02
QAT_SHARE = 1 / 3
SAVE_EVERY = 120         # seconds


def orthogonal(x, steps=5):
    """Newton-Schulz iteration towards the nearest orthogonal matrix; x [batch, rows, cols]."""
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = x.shape[1] > x.shape[2]
    x = x.bfloat16()
    if tall:
        x = x.transpose(1, 2)
    x = (x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)).contiguous()
    for _ in range(steps):
        g = x @ x.transpose(1, 2)
        x = torch.baddbmm(x, torch.baddbmm(g, g, g, beta=b, alpha=c), x, beta=a)
    return x.transpose(1, 2) if tall else x


class Weights:
    """All weights in three flat f32 leaves (4-bit matrices, 8-bit matrices, vectors), with views by name."""

    def __init__(self, c, seed, device):
        fresh, self.shapes = mm.init(c, seed), mm.shapes(c)
        adam4 = ("embed_tokens", "in_proj_a", "in_proj_b")
        self.muon = [n for n, (_, b) in self.shapes.items() if b == 4 and not n.endswith(adam4)]
        groups = [self.muon + [n for n, (_, b) in self.shapes.items() if b == 4 and n.endswith(adam4)],
                  [n for n, (_, b) in self.shapes.items() if b == 8], [n for n, (_, b) in self.shapes.items() if b == 0]]
        self.names = groups
        self.flat = [torch.cat([fresh[n].flatten() for n in g]).to(device).requires_grad_() for g in groups]
        self.n_muon = sum(fresh[n].numel() for n in self.muon)

    def views(self, flats):
        out = {}
        for names, flat in zip(self.names, flats):
            parts = flat.split([math.prod(self.shapes[n][0]) for n in names])
            out.update({n: p.view(self.shapes[n][0]) for n, p in zip(names, parts)})
        return out

    def effective(self, fake_quant, compile_):
        rounded = mm.fn(quant.rounded, compile_)
        f4, f8, f0 = self.flat
        if fake_quant:
            return self.views([rounded(f4.view(-1, 64), 4).flatten(), rounded(f8.view(-1, 64), 8).flatten(), f0.bfloat16()])
        return self.views([f.bfloat16() for f in self.flat])


class Optimiser:
    def __init__(self, weights, steps):
        self.w = weights
        device = weights.flat[0].device
        self.adam_parts = lambda flats: [flats[0][weights.n_muon:], flats[1], flats[2]]
        self.m = [torch.zeros_like(p) for p in self.adam_parts([f.detach() for f in weights.flat])]
        self.v = [torch.zeros_like(p) for p in self.m]
        by_shape = {}
        for n in weights.muon:
            by_shape.setdefault(weights.shapes[n][0], []).append(n)
        self.groups = sorted(by_shape.items())
        self.gains = torch.cat([torch.full((math.prod(weights.shapes[n][0]),), float(n.endswith(("norm", "layernorm")))) for n in weights.names[2]]).to(device)
        self.buf = [torch.zeros(len(names), *shape, device=device) for shape, names in self.groups]
        self.step = torch.zeros(1, dtype=torch.long, device=device)
        rows = []
        for s in range(steps + 8):
            t = min(1.0, s / max(1, steps))
            lr = min(1.0, (s + 1) / WARMUP) * (FINAL_LR + (1 - FINAL_LR) * 0.5 * (1 + math.cos(math.pi * t)))
            rows.append([lr, 1 / (1 - ADAM_B1 ** (s + 1)), 1 / (1 - ADAM_B2 ** (s + 1))])
        self.table = torch.tensor(rows, device=device)

    def state(self):
        return [f.detach() for f in self.w.flat] + self.m + self.v + self.buf + [self.step]

    @torch.no_grad()
    def update(self, grads):
        lr, c1, c2 = self.table.index_select(0, self.step)[0].unbind()
        parts = self.adam_parts(grads)
        norm = torch.sqrt(sum(g.pow(2).sum() for g in parts))
        clip = (1 / norm.clamp(min=1e-9)).clamp(max=1)
        for p, g, m, v in zip(self.adam_parts([f.detach() for f in self.w.flat]), parts, self.m, self.v):
            g = g * clip
            m.lerp_(g, 1 - ADAM_B1)
            v.lerp_(g * g, 1 - ADAM_B2)
            p.sub_(lr * ADAM_LR * (m * c1) / ((v * c2).sqrt() + 1e-8))
        vectors = self.w.flat[2].detach()
        vectors.sub_(lr * ADAM_LR * GAIN_PULL * self.gains * (vectors - 1))
        views, grad_views = self.w.views([f.detach() for f in self.w.flat]), self.w.views(grads)
        for (shape, names), buf in zip(self.groups, self.buf):
            g = torch.stack([grad_views[n] for n in names])
            buf.mul_(MUON_MOMENTUM).add_(g)
            step = orthogonal(g.add(buf, alpha=MUON_MOMENTUM).flatten(0, -3)).view(len(names), *shape)
            scale = MUON_LR * max(1, shape[-2] / shape[-1]) ** 0.5
            for n, s in zip(names, step):
                views[n].mul_(1 - lr * MUON_LR * MUON_DECAY).sub_(lr * scale * s)
        self.step.add_(1)


class Trainer:
    def __init__(self, c, weights, optimiser, device):
        self.c, self.w, self.opt, self.device = c, weights, optimiser, device
        self.gpu = self.graphs = device == "cuda"
        self.tokens = torch.zeros(ROWS, data.ROW, dtype=torch.long, device=device)
        self.codes = torch.full((ROWS, data.ROW), 1, dtype=torch.uint8, device=device)
        self.cos, self.sin = mm.rope_table(c, data.ROW, device)
        self.lookup = torch.tensor([0.0, PROMPT_WEIGHT, 1.0], device=device)
        self.stats = torch.zeros(4, device=device)
        self.graph, self.graph_quant = None, None

    def loss(self, fake_quant):
        w = self.w.effective(fake_quant, self.gpu)
        weight = self.lookup[(self.codes & 3).long()]
        return mm.train_loss(self.c, w, self.tokens, self.codes >= 128, weight, self.cos, self.sin, self.gpu)

    def one(self, fake_quant):
        loss, balance, total, count = self.loss(fake_quant)
        grads = torch.autograd.grad(loss + BALANCE * balance, self.w.flat)
        self.opt.update(grads)
        self.stats.add_(torch.stack([loss.detach(), balance.detach(), total, count]))

    def capture(self, fake_quant):
        """Warms up, restores what the warm-up changed, and records one step as a graph."""
        keep = [t.clone() for t in self.opt.state() + [self.stats]]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.one(fake_quant)
        torch.cuda.current_stream().wait_stream(stream)
        for t, k in zip(self.opt.state() + [self.stats], keep):
            t.copy_(k)
        self.graph = None
        torch.cuda.empty_cache()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.one(fake_quant)
        for t, k in zip(self.opt.state() + [self.stats], keep):
            t.copy_(k)

    def step(self, tokens, codes, fake_quant):
        self.tokens.copy_(tokens)
        self.codes.copy_(codes)
        if not self.graphs:
            return self.one(fake_quant)
        if self.graph_quant != fake_quant:
            self.capture(fake_quant)
            self.graph_quant = fake_quant
        self.graph.replay()


class Shards:
    """Batches in the order of the shard numbers; waits for shards that are still being made."""

    def __init__(self, folder, device):
        self.folder, self.device, self.index = Path(folder), device, None

    def load(self, index, patience=600):
        path = self.folder / f"shard-{index:04d}.npy"
        waited = 0
        while not path.exists():
            time.sleep(0.2)
            waited += 0.2
            if waited > patience:
                raise FileNotFoundError(path)
        both = torch.from_numpy(np.load(path).astype(np.int32)).to(self.device)
        self.index, self.tokens, self.codes = index, both[0], both[1].to(torch.uint8)

    def batch(self, step, rows):
        if self.index is None:
            self.load(0)
            self.per = self.tokens.shape[0] // rows
        per = self.per
        if step // per != self.index:
            self.load(step // per)
        at = step % per * rows
        return self.tokens[at:at + rows], self.codes[at:at + rows]


@torch.no_grad()
def answer_loss(trainer, weights, tokens, codes):
    """Mean -log p of the answer tokens of some rows with the given bf16 weights."""
    total, count = 0.0, 0.0
    for at in range(0, tokens.shape[0] - ROWS + 1, ROWS):
        weight = trainer.lookup[(codes[at:at + ROWS] & 3).long()]
        _, _, t, n = mm.train_loss(trainer.c, weights, tokens[at:at + ROWS].long(), codes[at:at + ROWS] >= 128, weight, trainer.cos, trainer.sin, False)
        total, count = total + t.item(), count + n.item()
    return total / count


def profile(trainer):
    from torch.profiler import ProfilerActivity
    with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as p:
        trainer.graph.replay()
        torch.cuda.synchronize()
    print(p.key_averages().table(sort_by="cuda_time_total", row_limit=28, max_name_column_width=70))


def save_state(opt, saved):
    temporary = saved.with_suffix(".part")
    torch.save([t.cpu() for t in opt.state()], temporary)
    temporary.rename(saved)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shards", required=True)
    parser.add_argument("--work", required=True, type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--val", type=int, default=9999, help="number of the shard that is never trained on")
    parser.add_argument("--backup", type=Path, help="also write the f32 weights there, in four files")
    parser.add_argument("--eager", action="store_true", help="no CUDA graph")
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    began = time.time()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")
    c = mm.Config()
    weights = Weights(c, args.seed, device)
    opt = Optimiser(weights, args.steps)
    trainer = Trainer(c, weights, opt, device)
    trainer.graphs = trainer.gpu and not args.eager
    args.work.mkdir(parents=True, exist_ok=True)
    saved = args.work / "state.pt"
    if saved.exists():
        for t, k in zip(opt.state(), torch.load(saved, map_location=device)):
            t.copy_(k)
    step = int(opt.step)
    shards = Shards(args.shards, device)
    quant_from = int(args.steps * (1 - QAT_SHARE))
    print(f"{sum(f.numel() for f in weights.flat)} parameters, step {step} of {args.steps}, {device}, {time.time() - began:.1f} s", flush=True)
    told = []
    signal.signal(signal.SIGTERM, lambda *_: told.append(True))
    mark, mark_step, kept = time.time(), step, time.time()
    while step < args.steps and time.time() - began < args.seconds and not told:
        trainer.step(*shards.batch(step, ROWS), step >= quant_from)
        step += 1
        if step - mark_step == 100 or step == args.steps or step in (1, 10, quant_from, quant_from + 1):
            s = trainer.stats.tolist()
            trainer.stats.zero_()
            n, now = step - mark_step, time.time()
            print(f"step {step} loss {s[0] / n:.4f} answers {s[2] / max(1, s[3]):.4f} balance {s[1] / n:.3f} {n * ROWS * data.ROW / (now - mark) / 1e3:.0f} k tok/s "
                  f"{now - began:.0f} s", flush=True)
            mark, mark_step = now, step
            if not s[0] == s[0]:
                raise SystemExit("loss is NaN")
            if now - kept > SAVE_EVERY:
                save_state(opt, saved)
                kept = time.time()
    if args.profile and trainer.graphs:
        profile(trainer)
    save_state(opt, saved)
    by_name = weights.views([f.detach() for f in weights.flat])
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        special = {t["content"]: t["id"] for t in json.loads((data.MODEL / "tokenizer.json").read_text())["added_tokens"]}
        checkpoint.save(args.out, c, by_name, special)
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
            if args.out.resolve() != data.MODEL:
                shutil.copyfile(data.MODEL / name, args.out / name)
    if args.backup:
        args.backup.mkdir(parents=True, exist_ok=True)
        for i, part in enumerate(torch.cat([f.detach().cpu() for f in weights.flat]).chunk(4)):
            np.save(args.backup / f"weights-{i}.npy", part.numpy())
    trainer.graph = None
    shards.load(args.val)
    tokens, codes = shards.tokens, shards.codes
    plain = weights.effective(False, False)
    stored = weights.effective(True, False)
    a, b = answer_loss(trainer, plain, tokens, codes), answer_loss(trainer, stored, tokens, codes)
    print(f"answer loss bf16 {a:.4f}, 4 bit {b:.4f}, perplexity ratio {math.exp(b - a):.4f}; {time.time() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
