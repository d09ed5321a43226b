#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the family's whole tokenizer, in both published forms, from the packed copy in tests/data.

  unpack_tokenizer.py [OUT]     OUT (default build/data) gets
      qwen36/        tokenizer.json, tokenizer_config.json
      qwen36-pair/   vocab.json, merges.txt, tokenizer_config.json

vocab.json and merges.txt are byte for byte the published files (their digests are checked);
tokenizer.json holds what the published one holds, and like it stops at the added token 248069:
the last seven stand in tokenizer_config.json alone.
"""
import hashlib
import json
import lzma
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "tests/data/qwen36"
DIGESTS = {
    "merges.txt": "a9d356d7bdf1ef4949e3e748e95b8e10ad9d4e2e838eddc38a0a7b6b94d1db8d",
    "vocab.json": "ce99b4cb2983d118806ce0a8b777a35b093e2000a503ebde25853284c9dfa003",
}


def byte_alphabet():
    """The 256 characters that stand for bytes, in the order of their ids."""
    plain = [b for b in range(256) if 0x21 <= b <= 0x7E or 0xA1 <= b <= 0xAC or 0xAE <= b <= 0xFF]
    return [chr(b) for b in plain] + [chr(256 + i) for i in range(256 - len(plain))]


def read_packed():
    """merges as bytes, and the vocabulary: bytes, then merge results around the entries that no merge yields."""
    merges = lzma.decompress((SOURCE / "merges.txt.xz").read_bytes())
    entries = json.loads((SOURCE / "entries_without_merge.json").read_text(encoding="utf-8"))["entries"]
    fixed = {e["id"]: e["token"] for e in entries}
    vocab = {token: i for i, token in enumerate(byte_alphabet())}
    for line in merges.decode().splitlines():
        while len(vocab) in fixed:
            vocab[fixed[len(vocab)]] = len(vocab)
        vocab[line.replace(" ", "")] = len(vocab)
    return merges, vocab


def tokenizer_json(merges, vocab, added, expression):
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": added,
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}]},
        "post_processor": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
                  "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": vocab, "merges": merges.decode().splitlines()},
    }


def main():
    if len(sys.argv) > 2 or sys.argv[1:2] in (["-h"], ["--help"]):
        raise SystemExit(__doc__)
    out = Path(sys.argv[1] if len(sys.argv) == 2 else "build/data")
    merges, vocab = read_packed()
    special = json.loads((SOURCE / "special_tokens.json").read_text(encoding="utf-8"))
    config = (SOURCE / "tokenizer_config.json").read_bytes()
    files = {"merges.txt": merges, "vocab.json": json.dumps(vocab, ensure_ascii=False, indent=4).encode()}
    for name, content in files.items():
        digest = hashlib.sha256(content).hexdigest()
        if digest != DIGESTS[name]:
            raise SystemExit(f"{name}: expected SHA-256 {DIGESTS[name]}, found {digest}")
    added = [t for t in special["added_tokens"] if t["id"] not in special["added_only_in_tokenizer_config"]]
    whole = tokenizer_json(merges, vocab, added, special["pretokenize_regex"])
    files = {"qwen36-pair/" + name: content for name, content in files.items()}
    files["qwen36-pair/tokenizer_config.json"] = files["qwen36/tokenizer_config.json"] = config
    files["qwen36/tokenizer.json"] = json.dumps(whole, ensure_ascii=False, indent=2).encode()
    for name, content in files.items():
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(path.name + ".part")
        part.write_bytes(content)
        part.rename(path)


if __name__ == "__main__":
    main()
