#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The training data: conversations of the skills, rendered by the family's chat template, encoded, packed into rows.

  data.py show [-n 20] [--skill NAME]            conversations as text
  data.py heldout -o FILE [--per-cell N]         the held-out questions, one JSON object a line (score.py reads the answers)
  data.py shards -o DIR --first 0 --last 40      training shards, --jobs processes
  data.py text -o FILE [--docs N]                text for the tokenizer (train_tokenizer.py)

Shard i and the held-out set depend on nothing but their number and this code: the same bytes on every machine with the
same Python.  A row is ROW tokens of whole conversations; code per token: 0 padding, 1 prompt, 2 answer, +128 first of a document.
"""
import argparse
import json
import os
import random
import re
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import jinja2

import lexicon as lx
import skills as sk
import tool_skills as ts

HERE = Path(__file__).resolve().parent
MODEL = Path(os.environ.get("MINI_MODEL", HERE.parent.parent / "models" / "mini"))
ROW = 2048
ROWS_PER_SHARD = 512

# Skill: (function, weight in training, name in the held-out table or None)
SKILLS = {
    "sum": (sk.add, 7), "difference": (sk.subtract, 7), "product": (sk.multiply, 9), "story": (sk.story, 4), "compare": (sk.compare, 2),
    "capital": (sk.capital, 6), "opposite": (sk.opposite, 3), "element": (sk.element, 3), "color": (sk.color, 2), "calendar": (sk.calendar, 5),
    "nature": (sk.nature, 4), "spell": (sk.spell, 4), "count": (sk.count_letter, 8), "length": (sk.word_length, 2.5), "letter": (sk.first_letter, 2),
    "reverse": (sk.reverse_word, 10), "upper": (sk.upper, 6), "plural": (sk.plural, 5), "reverse_list": (sk.reverse_list, 4), "repeat": (sk.repeat, 5),
    "json": (sk.extract, 10), "mark": (sk.mark, 9), "unknown": (sk.unknown, 7), "chat": (sk.chat, 8), "introduce": (sk.introduce, 5),
    "system": (ts.system_rule, 12), "notes": (ts.notes, 4), "notes_long": (ts.notes_long, 1.2), "tool_call": (ts.tool_call, 10),
    "tool_answer": (ts.tool_answer, 0), "tool_long": (ts.tool_long, 1.4), "tool_unused": (ts.tool_unused, 3),
}
TEXT_SKILLS = [n for n in SKILLS if not n.startswith(("tool", "system", "notes", "introduce"))]
# The tokenizer does not see the letter tasks: their words then stay in pieces, whose spelling carries over to new words.
NOT_FOR_TOKENIZER = {"spell", "count", "length", "letter", "reverse", "upper", "repeat", "reverse_list"}


def _raise(message):
    raise ValueError(message)


def load_template(path=None):
    env = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    env.filters["tojson"] = lambda x: json.dumps(x, ensure_ascii=False)
    env.globals["raise_exception"] = _raise
    return env.from_string((path or MODEL / "chat_template.jinja").read_text())


def weighted_skill(rng, names, weights):
    return rng.choices(names, weights)[0]


def conversation(ctx, name, history=None):
    """(messages, tools, index of the message to be checked) of one sample; letters are still marked."""
    item = SKILLS[name][0](ctx)
    messages = []
    system = item.get("system")
    if system is None and ctx.chance(0.1):
        system = ctx.word(ts.PLAIN_SYSTEM)
    if system:
        messages.append(dict(role="system", content=system))
    if history is None:
        history = ctx.rng.choice([0, 0, 0, 0, 0, 0, 1, 1, 2, 4]) if name not in ("notes_long", "tool_long", "system") else 0
    for _ in range(history):
        other = SKILLS[weighted_skill(ctx.rng, TEXT_SKILLS, [SKILLS[n][1] for n in TEXT_SKILLS])][0](ctx)
        for role, content in other["before"] + [("user", other["user"]), ("assistant", other["answer"])]:
            messages.append(dict(role=role, content=content))
    for role, content in item["before"]:
        messages.append(dict(role=role, content=content))
    messages.append(dict(role="user", content=item["user"]))

    def assistant(content, think, calls=None):
        m = dict(role="assistant", content=content, reasoning_content=think if ctx.think else "")
        if calls:
            m["tool_calls"] = [dict(type="function", function=dict(name=n, arguments=a)) for n, a in calls]
        messages.append(m)

    checked = len(messages)
    if item.get("calls"):
        assistant("", item["think"], item["calls"])
        for r in item["results"]:
            messages.append(dict(role="tool", content=r))
        if item.get("ask_final"):
            checked = len(messages)
            item["check"] = item["final_check"]
        assistant(item["final"], "I have the result" + ("s." if len(item["calls"]) > 1 else "."))
    else:
        assistant(item["answer"], item["think"])
    return messages, item.get("tools"), checked, item["check"]


def sample(rng, template):
    """One training document as text with letter marks."""
    if rng.random() < 0.02:
        return raw_document(rng)
    ctx = sk.Ctx(rng, think=rng.random() < 0.5)
    names = list(SKILLS)
    name = weighted_skill(rng, names, [SKILLS[n][1] for n in names])
    history = rng.randint(12, 45) if rng.random() < 0.006 else None
    messages, tools, _, _ = conversation(ctx, name, history)
    return template.render(messages=messages, tools=tools, enable_thinking=ctx.think, add_generation_prompt=False)


def raw_document(rng):
    """Plain sentences, for prompts without the template."""
    ctx = sk.Ctx(rng)
    facts = [sk.capital, sk.opposite, sk.element, sk.color, sk.nature, sk.calendar, sk.add, sk.multiply]
    return "\ue002" + " ".join(ctx.pick(facts)(ctx)["answer"] for _ in range(rng.randint(1, 6)))


_TURN = re.compile(r"(<\|im_start\|>assistant\n(?:<think>\n(?:\n</think>\n\n)?)?)(.*?<\|im_end\|>)", re.S)


def pieces(text):
    """[(text, is_answer, by_letter)] of one rendered document."""
    if text.startswith("\ue002"):
        return [(text[1:], True, False)]
    out, at = [], 0
    last_user = text.rfind("<|im_start|>user\n") if "<tool_response>" not in text else text.find("<|im_start|>assistant\n<think>")
    for m in _TURN.finditer(text):
        out.append((text[at:m.start(2)], False, False))
        body, at = m.group(2), m.end(2)
        if sk.LETTERS_ON not in body:
            out.append((body, True, False))
        elif m.start() < last_user:
            out.append((body, False, False))
        else:
            for i, part in enumerate(re.split(f"[{sk.LETTERS_ON}{sk.LETTERS_OFF}]", body)):
                out.append((part, True, i % 2 == 1))
    out.append((text[at:], False, False))
    merged = []
    for part, answer, by_letter in out:
        part = sk.plain(part)
        if merged and not answer and not merged[-1][1]:
            merged[-1] = (merged[-1][0] + part, False, False)
        elif part:
            merged.append((part, answer, by_letter))
    return merged


class Encoder:
    def __init__(self, path=None):
        import tokenizers
        self.tok = tokenizers.Tokenizer.from_file(str(path or MODEL / "tokenizer.json"))
        self.end = self.tok.token_to_id("<|endoftext|>")
        self.chars = {}

    def ids(self, text):
        return self.tok.encode(text, add_special_tokens=False).ids

    def by_letter(self, text):
        out = []
        for c in text:
            if c not in self.chars:
                self.chars[c] = self.ids(c)
            out += self.chars[c]
        return out

    def document(self, text):
        """(ids, codes)"""
        ids, codes = [], []
        for part, answer, letters in pieces(text):
            new = self.by_letter(part) if letters else self.ids(part)
            ids += new
            codes += [2 if answer else 1] * len(new)
        ids.append(self.end)
        codes.append(1)
        codes[0] |= 128
        return ids, codes


def make_shard(index, rows=ROWS_PER_SHARD, out=None):
    """Rows of whole documents; a document that does not fit waits for the next row, one of more than ROW tokens is dropped."""
    import numpy as np
    rng = random.Random(f"lily mini shard {index}")
    template, encoder = load_template(), Encoder()
    tokens = np.full((rows, ROW), encoder.end, np.uint16)
    codes = np.zeros((rows, ROW), np.uint8)
    waiting = []
    for r in range(rows):
        at, misses = 0, 0
        while at < ROW and misses < 24:
            chosen = next((i for i, d in enumerate(waiting) if len(d[0]) <= ROW - at), None)
            if chosen is None:
                ids, cs = encoder.document(sample(rng, template))
                if len(ids) > ROW:
                    continue
                if len(ids) > ROW - at:
                    waiting.append((ids, cs))
                    misses += 1
                    continue
            else:
                ids, cs = waiting.pop(chosen)
            tokens[r, at:at + len(ids)] = ids
            codes[r, at:at + len(ids)] = cs
            at += len(ids)
    if out is not None:
        part = Path(out) / f"part-{index:04d}.npy"
        np.save(part, np.stack([tokens, codes.astype(np.uint16)]))
        os.rename(part, Path(out) / f"shard-{index:04d}.npy")
    return tokens, codes


def heldout(per_cell, skills=None):
    """The held-out questions: items never trained on; wording 'seen' (trained with other items) and 'unseen' (never trained)."""
    template = load_template()
    for name in skills or SKILLS:
        for unseen in (False, True):
            for think in (False, True):
                rng = random.Random(f"lily mini held out {name} {unseen} {think}")
                done = set()
                for _ in range(per_cell * 20):
                    ctx = sk.Ctx(rng, test=True, unseen=unseen, think=think)
                    messages, tools, checked, check = conversation(ctx, name, history=0)
                    key = json.dumps(messages[:checked])
                    if key in done:
                        continue
                    done.add(key)
                    for m in messages:
                        m["content"] = sk.plain(m["content"])
                        if "reasoning_content" in m:
                            m["reasoning_content"] = sk.plain(m["reasoning_content"])
                    prompt = template.render(messages=messages[:checked], tools=tools, enable_thinking=think, add_generation_prompt=True)
                    yield dict(id=f"{name}/{'unseen' if unseen else 'seen'}/{'think' if think else 'direct'}/{len(done) - 1}", skill=name, wording="unseen" if unseen else "seen",
                               mode="think" if think else "direct", messages=messages[:checked], tools=tools, expected=messages[checked], check=check, prompt=prompt)
                    if len(done) == per_cell:
                        break


def tokenizer_text(n_docs):
    """Text of training documents without the letter tasks and without what is written letter by letter."""
    template = load_template()
    rng = random.Random("lily mini tokenizer")
    names = [n for n in SKILLS if n not in NOT_FOR_TOKENIZER and SKILLS[n][1]]
    weights = [SKILLS[n][1] for n in names]
    for _ in range(n_docs):
        ctx = sk.Ctx(rng, think=rng.random() < 0.5, tokenizer=True)
        messages, tools, _, _ = conversation(ctx, weighted_skill(rng, names, weights), 0)
        if tools and rng.random() < 0.7:
            tools = None
        text = template.render(messages=messages, tools=tools, enable_thinking=ctx.think)
        yield re.sub(f"{sk.LETTERS_ON}.*?{sk.LETTERS_OFF}", "", text, flags=re.S)
    for word in lx.WORDS:  # single words, so that common ones of the letter tasks are not all in pieces
        yield f"{word} {word}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("verb", choices=["show", "heldout", "shards", "text"])
    parser.add_argument("-o", "--out")
    parser.add_argument("-n", type=int, default=20)
    parser.add_argument("--skill")
    parser.add_argument("--per-cell", type=int, default=50)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--last", type=int, default=0)
    parser.add_argument("--rows", type=int, default=ROWS_PER_SHARD)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--docs", type=int, default=60000)
    args = parser.parse_args()
    if args.verb == "show":
        template, rng = load_template(), random.Random(args.n)
        for _ in range(args.n):
            if args.skill:
                ctx = sk.Ctx(rng, think=rng.random() < 0.5)
                messages, tools, _, _ = conversation(ctx, args.skill)
                print(sk.plain(template.render(messages=messages, tools=tools, enable_thinking=ctx.think)))
            else:
                print(sk.plain(sample(rng, template)))
    elif args.verb == "heldout":
        with open(args.out, "w") as f:
            for item in heldout(args.per_cell, [args.skill] if args.skill else None):
                f.write(json.dumps(item, ensure_ascii=False) + "\n")
    elif args.verb == "text":
        with open(args.out, "w") as f:
            for text in tokenizer_text(args.docs):
                f.write(text + "\n")
    else:
        Path(args.out).mkdir(parents=True, exist_ok=True)
        with ProcessPoolExecutor(args.jobs) as pool:
            for job in [pool.submit(_shard_job, i, args.rows, args.out) for i in range(args.first, args.last + 1)]:
                print("shard", job.result(), flush=True)


def _shard_job(index, rows, out):
    if not (Path(out) / f"shard-{index:04d}.npy").exists():
        make_shard(index, rows, out)
    return index


if __name__ == "__main__":
    sys.exit(main())
