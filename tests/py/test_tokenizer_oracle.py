# SPDX-License-Identifier: Apache-2.0
"""Token ids beside the `tokenizers` package on random text, on both splitting rules.

Needs build/data/qwen36 (tools/unpack_tokenizer.py) and the program bench_text in $LILY_BUILD (default
build). $LILY_ORACLE_CHARS: random characters a rule (default 300,000); $LILY_ORACLE_SEED; with
$LILY_ORACLE_ALL=1 every code point instead of every 37th.
"""
import itertools
import json
import os
import random
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers

ROOT = Path(__file__).resolve().parent.parent.parent
BUILD = ROOT / os.environ.get("LILY_BUILD", "build")
DATA = ROOT / "build/data/qwen36"
SEED = int(os.environ.get("LILY_ORACLE_SEED", random.randrange(1 << 30)))
N_CHARS = int(os.environ.get("LILY_ORACLE_CHARS", 300_000))
ALL = os.environ.get("LILY_ORACLE_ALL") == "1"
SPECIAL = json.loads((ROOT / "tests/data/qwen36/special_tokens.json").read_text(encoding="utf-8"))
ADDED = [t["content"] for t in SPECIAL["added_tokens"]]


def in_range(*ranges):
    return [chr(c) for low, high in ranges for c in range(low, high + 1)]


POOLS = {
    "letter": in_range((0x41, 0x5A), (0x61, 0x7A)),
    "punctuation": in_range((0x21, 0x2F), (0x3A, 0x40), (0x5B, 0x60), (0x7B, 0x7E)),
    "digit": in_range((0x30, 0x39)) + list("²½Ⅷ٣९๔𝟘〇"),
    "space": list(" \t\n\r\v\f") + [chr(c) for c in (0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000)],
    "nearly_space": [chr(c) for c in (0x1C, 0x1D, 0x1E, 0x1F, 0x180E, 0x200B, 0x200C, 0x200D, 0xFEFF, 0, 0x7F)],
    "contraction": ["'s", "'S", "'T", "'re", "'Ve", "'LL", "'d", "'m", "'ſ", "'", "’s", "'r", "'l", "'v"],
    "mark": in_range((0x300, 0x36F), (0x483, 0x489), (0x591, 0x5BD), (0x64B, 0x65F), (0x93A, 0x94F), (0xE31, 0xE3A), (0xE47, 0xE4E), (0x1DC0, 0x1DFF), (0x20D0, 0x20F0)),
    "latin": in_range((0xC0, 0x24F), (0x1E00, 0x1EFF)),
    "hangul": in_range((0x1100, 0x1112), (0x1161, 0x1175), (0x11A8, 0x11C2), (0xAC00, 0xAC40)),
    "indic": in_range((0x900, 0x97F), (0x980, 0x9FF), (0xB80, 0xBFF), (0xE00, 0xE5B)),
    "semitic": in_range((0x590, 0x5F4), (0x600, 0x6FF)),
    "cjk": in_range((0x4E00, 0x4FFF), (0x3041, 0x30FF), (0xF900, 0xFAD9), (0x2F800, 0x2F80F)),
    "emoji": in_range((0x1F300, 0x1F6FF), (0x1F900, 0x1F9FF), (0x1F3FB, 0x1F3FF)) + ["\u200d", "\ufe0f"],
    "added": ADDED + ["<|im_", "end|>", "<think", "</", "|>", "<", "<<|im_end|>"],
    "any": None,
}


def any_char(rng):
    while True:
        c = rng.randrange(0x110000) if rng.random() < 0.5 else rng.randrange(0x3000)
        if not 0xD800 <= c < 0xE000:
            return chr(c)


def random_document(rng, words):
    """Runs of one or a few characters of one kind; a document leans to a few kinds."""
    kinds = rng.sample(list(POOLS), rng.randint(1, 6))
    parts, size, want = [], 0, rng.choice([1, 3, 10, 40, 200])
    while size < want:
        if rng.random() < 0.1:
            part = rng.choice(words)
        else:
            kind = rng.choice(kinds)
            n = rng.choice([1, 1, 1, 2, 3, 8])
            if rng.random() < 0.1:
                n = rng.choice([20, 70])
            if kind == "any":
                part = "".join(any_char(rng) for _ in range(n))
            elif rng.random() < 0.2:
                part = rng.choice(POOLS[kind]) * n
            else:
                part = "".join(rng.choice(POOLS[kind]) for _ in range(n))
        parts.append(part)
        size += len(part)
    return "".join(parts)


def code_point_documents(step):
    """Every code point where it may matter: alone, in a word, behind space, digit, mark, quote."""
    for c in range(SEED % step, 0x110000, step):
        if not 0xD800 <= c < 0xE000:
            c = chr(c)
            yield f"{c}a{c} {c}1{c}\n{c}\u0301{c} '{c}!{c}{c}  {c}e\u0323{c}\u0307"


def write_documents(path, documents):
    with open(path, "wb") as file:
        for document in documents:
            data = document.encode()
            file.write(struct.pack("<I", len(data)) + data)


def read_ids(path):
    data = path.read_bytes()
    at, result = 0, []
    while at < len(data):
        (n,) = struct.unpack_from("<i", data, at)
        assert n >= 0, f"document {len(result)} was refused"
        result.append(list(struct.unpack_from(f"<{n}i", data, at + 4)))
        at += 4 + 4 * n
    return result


@pytest.fixture(scope="module", params=["pretokenize_regex", "qwen3_pretokenize_regex"])
def both(request, tmp_path_factory):
    """(the package's tokenizer, a function from documents to our ids)"""
    folder = tmp_path_factory.mktemp("tokenizer")
    root = json.loads((DATA / "tokenizer.json").read_text(encoding="utf-8"))
    root["added_tokens"] = SPECIAL["added_tokens"]
    root["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = SPECIAL[request.param]
    (folder / "tokenizer.json").write_text(json.dumps(root, ensure_ascii=False), encoding="utf-8")

    def ours(documents):
        write_documents(folder / "docs", documents)
        subprocess.run([BUILD / "bench_text", "ids", folder, "248320", folder / "docs", folder / "ids"], check=True)
        return read_ids(folder / "ids")

    return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")), ours


def compare(both, documents):
    theirs, ours = both
    found = ours(documents)
    assert len(found) == len(documents)
    wrong = []
    for start in range(0, len(documents), 1000):  # the package's results are large
        part = documents[start : start + 1000]
        for i, e in enumerate(theirs.encode_batch_fast(part, add_special_tokens=False)):
            if found[start + i] != e.ids:
                wrong.append((ascii(part[i]), e.ids, found[start + i]))
    wrong.sort(key=lambda w: len(w[0]))
    assert not wrong, f"seed {SEED}: {len(wrong)} of {len(documents)} differ: {wrong[:5]}"


def test_random_text(both):
    print(f"seed {SEED}", file=sys.stderr)
    rng = random.Random(SEED)
    vocabulary = both[0].get_vocab_size()
    words = [w for w in (both[0].decode([rng.randrange(vocabulary)]) for _ in range(20_000)) if "\ufffd" not in w]
    documents, size = [], 0
    while size < N_CHARS:
        documents.append(random_document(rng, words))
        size += len(documents[-1])
    compare(both, documents)


def test_every_code_point(both):
    print(f"seed {SEED}", file=sys.stderr)
    documents = code_point_documents(1 if ALL else 37)
    while part := list(itertools.islice(documents, 100_000)):
        compare(both, part)


def test_entries_without_a_merge_are_never_made(both):
    path = ROOT / "tests/data/qwen36/entries_without_merge.json"
    entries = json.loads(path.read_text(encoding="utf-8"))["entries"]
    compare(both, [e["text"] for e in entries if e["text"]])
