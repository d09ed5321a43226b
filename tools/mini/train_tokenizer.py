#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains the byte-level BPE on the generated text and writes the model folder's tokenizer files.

  train_tokenizer.py --family DIR -o DIR     DIR of --family: chat_template.jinja, special_tokens.json, tokenizer_config.json
"""
import argparse
import json
import shutil
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

import data

VOCAB = 4096  # rows of the embedding; the 33 added tokens are the last of them


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--family", required=True, type=Path)
    parser.add_argument("-o", "--out", default=data.MODEL, type=Path)
    parser.add_argument("--docs", type=int, default=60000)
    args = parser.parse_args()
    family = json.loads((args.family / "special_tokens.json").read_text())
    config = json.loads((args.family / "tokenizer_config.json").read_text())
    args.out.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(args.family / "chat_template.jinja", args.out / "chat_template.jinja")

    tok = tokenizers.Tokenizer(models.BPE(ignore_merges=False))
    tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(tokenizers.Regex(config["pretokenize_regex"]), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tok.decoder = decoders.ByteLevel()
    added = family["added_tokens"]
    n_base = VOCAB - len(added)

    def text():
        for document in data.tokenizer_text(args.docs):
            for a in added:  # control tokens are cut out before the merges are learned
                document = document.replace(a["content"], "\n")
            yield document

    trainer = trainers.BpeTrainer(vocab_size=n_base, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=[], show_progress=False)
    tok.train_from_iterator(text(), trainer)

    # The family's order: 256 bytes in the byte alphabet's order, merge results, then added tokens.
    trained = json.loads(tok.to_str())
    order = [b for b in range(256) if 0x21 <= b <= 0x7E or 0xA1 <= b <= 0xAC or 0xAE <= b <= 0xFF]
    n_plain = len(order)
    letters = [chr(b) for b in order] + [chr(256 + i) for i in range(256 - n_plain)]
    merges = [m if isinstance(m, list) else m.split(" ") for m in trained["model"]["merges"]]
    vocab = {c: i for i, c in enumerate(letters)}
    for a, b in merges:
        if a + b not in vocab:
            vocab[a + b] = len(vocab)
    assert len(vocab) == len(trained["model"]["vocab"]) <= n_base, (len(vocab), n_base)
    trained["model"]["vocab"], trained["model"]["merges"] = vocab, merges
    trained["added_tokens"] = [
        {"id": n_base + i, "content": a["content"], "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": a["special"]}
        for i, a in enumerate(added)]
    (args.out / "tokenizer.json").write_text(json.dumps(trained, ensure_ascii=False, indent=1) + "\n")

    config["added_tokens_decoder"] = {str(t["id"]): {k: t[k] for k in ("content", "lstrip", "normalized", "rstrip", "single_word", "special")} for t in trained["added_tokens"]}
    config["model_max_length"] = 2048
    (args.out / "tokenizer_config.json").write_text(json.dumps(config, ensure_ascii=False, indent=4) + "\n")
    ids = {t["content"]: t["id"] for t in trained["added_tokens"]}
    generation = {"bos_token_id": ids["<|endoftext|>"], "do_sample": True, "eos_token_id": [ids["<|im_end|>"], ids["<|endoftext|>"]],
                  "pad_token_id": ids["<|endoftext|>"], "temperature": 1.0, "top_k": 20, "top_p": 0.95}
    (args.out / "generation_config.json").write_text(json.dumps(generation, indent=4) + "\n")
    print(f"{len(vocab)} base entries, {len(added)} added tokens from id {n_base}")


if __name__ == "__main__":
    main()
