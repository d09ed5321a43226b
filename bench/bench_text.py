#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Encoding speed beside the `tokenizers` package, one thread each, over the same documents.

  bench_text.py [--program build/bench_text] [--mb 10] [--rounds 3] [--json OUT] [FILE...]

Without FILE the text is generated from a fixed seed and the family's vocabulary: English, code,
Chinese and emoji in documents of some thousand characters. With FILEs it is theirs. Both sides must
give the same ids. Times are processor time, best of the rounds; the package runs its fastest call.
Needs build/data/qwen36 (tools/unpack_tokenizer.py) and the tokenizers package.
"""
import argparse
import json
import os
import random
import struct
import subprocess
import tempfile
import time
from pathlib import Path

from bench_program import find_program

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
import tokenizers  # noqa: E402  (after its thread switches)

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "build/data/qwen36"
VOCAB = 248320
SHARES = {"english": 40, "code": 30, "chinese": 20, "emoji": 10}  # percent of the bytes


class Stock:
    """Words of the vocabulary, frequent ones more often (by their place in it), and mixtures."""

    def __init__(self, tokenizer, seed):
        self.rng = random.Random(seed)
        tokens = [tokenizer.decode([i]) for i in range(120_000)]
        english = [t[1:] for t in tokens if len(t) > 2 and t[0] == " " and t[1:].isascii() and t[1:].isalpha() and t[1:].islower()]
        han = [t for t in tokens if t and all("\u4e00" <= c <= "\u9fa5" for c in t)]
        self.english, self.english_weights = english[:30_000], self.weights(min(len(english), 30_000))
        self.han, self.han_weights = han[:20_000], self.weights(min(len(han), 20_000))

    @staticmethod
    def weights(n):
        total, sums = 0.0, []
        for rank in range(n):
            total += 1 / (rank + 10)
            sums.append(total)
        return sums

    def words(self, n):
        rng = self.rng
        words = rng.choices(self.english, cum_weights=self.english_weights, k=n)
        for i in range(n):
            x = rng.random()
            if x < 0.06:  # words the vocabulary does not hold as a whole
                words[i] += rng.choice(self.english)[:5] + rng.choice(["", "s", "ing", "ness"])
            elif x < 0.10:
                words[i] = words[i].capitalize()
            elif x < 0.12:
                words[i] = str(rng.randrange(10 ** rng.randint(1, 6)))
            elif x < 0.13:
                words[i] += rng.choice(["'s", "'re", "n't", "-based"])
        return words

    def english_sentence(self):
        words = self.words(self.rng.randint(4, 25))
        for i in range(3, len(words) - 1, self.rng.randint(4, 9)):
            words[i] += ","
        return " ".join(words).capitalize() + self.rng.choice([".", ".", ".", "?", "!", ":"])

    def english_text(self):
        return self.rng.choice([" ", " ", " ", "\n", "\n\n"]).join(self.english_sentence() for _ in range(self.rng.randint(2, 6))) + "\n"

    def name(self):
        words = [w.lower() for w in self.words(self.rng.randint(1, 3))]
        if self.rng.random() < 0.6:
            return "_".join(words)
        return words[0] + "".join(w.capitalize() for w in words[1:])

    def code_text(self):
        rng, lines, depth = self.rng, [], 0
        for _ in range(rng.randint(10, 40)):
            pad, kind = "    " * depth, rng.randrange(9)
            a, b, c = self.name(), self.name(), self.name()
            if kind == 0:
                lines.append(f"{pad}def {a}(self, {b}: int = {rng.randrange(1000)}) -> {c}:")
                depth = min(depth + 1, 5)
            elif kind == 1:
                lines.append(f"{pad}if ({a} != {b}.{c}[{rng.randrange(64)}]) {{")
                depth = min(depth + 1, 5)
            elif kind == 2:
                lines.append(f"{pad}// {self.english_sentence()}")
            elif kind == 3:
                lines.append(f'{pad}{a} = {b}("{" ".join(self.words(3))}", 0x{rng.randrange(1 << 32):08x}, {c});')
            elif kind == 4:
                lines.append(f"{pad}return {a}->{b} + {c} * {rng.random():.4f};")
            elif kind == 5:
                lines.append(f"{pad}for (int i = 0; i < {a}; i++) {b}[i] += {c}[i];")
            elif kind == 6:
                lines.append("")
            else:
                depth = max(depth - 1, 0)
                lines.append("    " * depth + "}")
        return "\n".join(lines) + "\n"

    def chinese_text(self):
        rng, parts = self.rng, []
        for _ in range(rng.randint(5, 20)):
            clause = rng.choices(self.han, cum_weights=self.han_weights, k=rng.randint(2, 9))
            if rng.random() < 0.2:
                clause.insert(rng.randrange(len(clause)), chr(rng.randrange(0x4E00, 0x9FA6)))
            if rng.random() < 0.1:
                clause.append(str(rng.randrange(3000)))
            parts.append("".join(clause) + rng.choice("，，，。。！？；："))
        return "".join(parts) + "\n"

    def emoji_text(self):
        rng = self.rng
        text = rng.choice([self.english_sentence, self.chinese_text])()[: rng.randint(10, 60)]
        for _ in range(rng.randint(1, 8)):
            e = chr(rng.choice([rng.randrange(0x1F600, 0x1F650), rng.randrange(0x1F300, 0x1F5FF), rng.randrange(0x1F900, 0x1F9FF)]))
            text += rng.choice([e, e, e * 3, e + "\ufe0f", e + chr(rng.randrange(0x1F3FB, 0x1F400)), e + "\u200d" + chr(0x2764)])
        return text + "\n"

    def documents(self, kind, n_bytes):
        make, result = getattr(self, kind + "_text"), []
        while n_bytes > 0:
            want, parts = self.rng.randint(2000, 16000), []
            while want > 0:
                parts.append(make())
                want -= len(parts[-1])
            result.append("".join(parts))
            n_bytes -= len(result[-1].encode())
        return result


def cut(text, n=8000):
    return [text[i : i + n] for i in range(0, len(text), n)]


def measure_package(tokenizer, documents, rounds):
    best, ids = None, None
    for _ in range(rounds):
        start = time.process_time()
        encoded = tokenizer.encode_batch_fast(documents, add_special_tokens=False)
        seconds = time.process_time() - start
        if best is None or seconds < best:
            best = seconds
        ids = [e.ids for e in encoded]
    return best, ids


def measure_program(program, folder, documents, rounds):
    with open(folder / "docs", "wb") as file:
        for document in documents:
            data = document.encode()
            file.write(struct.pack("<I", len(data)) + data)
    line = subprocess.run([program, "speed", DATA, str(VOCAB), folder / "docs", str(rounds)], check=True, capture_output=True, text=True).stdout
    subprocess.run([program, "ids", DATA, str(VOCAB), folder / "docs", folder / "ids"], check=True)
    data, at, ids = (folder / "ids").read_bytes(), 0, []
    while at < len(data):
        (n,) = struct.unpack_from("<i", data, at)
        ids.append(list(struct.unpack_from(f"<{n}i", data, at + 4)))
        at += 4 + 4 * n
    return json.loads(line), ids


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default=str(ROOT / "build/bench_text"))
    parser.add_argument("--mb", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    args = parser.parse_args()
    args.program = find_program(args.program, "bench-text")

    tokenizer = tokenizers.Tokenizer.from_file(str(DATA / "tokenizer.json"))
    config = json.loads((DATA / "tokenizer_config.json").read_text(encoding="utf-8"))
    tokenizer.add_special_tokens([tokenizers.AddedToken(t["content"], normalized=False, special=t["special"]) for t in config["added_tokens_decoder"].values() if tokenizer.token_to_id(t["content"]) is None])
    if args.files:
        kinds = {str(f): cut(f.read_text(encoding="utf-8", errors="replace")) for f in args.files}
    else:
        stock = Stock(tokenizer, args.seed)
        kinds = {kind: stock.documents(kind, args.mb * 1e4 * share) for kind, share in SHARES.items()}
    if len(kinds) > 1:
        kinds["all"] = [d for documents in kinds.values() for d in documents]

    results = {"tokenizers_version": tokenizers.__version__, "kinds": {}}
    print(f"{'text':<12} {'MB':>6} {'bytes/id':>8} {'lily MB/s':>10} {'tokenizers MB/s':>16} {'times as fast':>14}")
    with tempfile.TemporaryDirectory() as folder:
        for kind, documents in kinds.items():
            theirs_s, theirs = measure_package(tokenizer, documents, args.rounds)
            ours, ids = measure_program(args.program, Path(folder), documents, args.rounds)
            for i, (a, b) in enumerate(zip(ids, theirs, strict=True)):
                if a != b:
                    raise SystemExit(f"{kind}: document {i}: the ids differ: {ascii(documents[i][:200])}")
            mb = ours["bytes"] / 1e6
            row = {"mb": mb, "bytes_per_id": ours["bytes"] / ours["ids"], "lily_mb_s": mb / ours["seconds"], "tokenizers_mb_s": mb / theirs_s, "times": theirs_s / ours["seconds"], "load_s": ours["load_s"]}
            results["kinds"][kind] = row
            print(f"{kind[-12:]:<12} {mb:>6.2f} {row['bytes_per_id']:>8.2f} {row['lily_mb_s']:>10.1f} {row['tokenizers_mb_s']:>16.2f} {row['times']:>14.1f}", flush=True)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
