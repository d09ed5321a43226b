# SPDX-License-Identifier: Apache-2.0
"""The training data without a GPU and without torch: determinism, the split, the scorer, the tokenizer, the written checkpoint."""
import hashlib
import json
import random
import re
import struct
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
pytest.importorskip("jinja2")

import data  # noqa: E402
import lexicon as lx  # noqa: E402
import score  # noqa: E402
import skills as sk  # noqa: E402
import tool_skills as ts  # noqa: E402
import wordings as wd  # noqa: E402


def template_lists():
    for module in (sk, ts):
        for name, value in vars(module).items():
            if name.isupper() and isinstance(value, list) and value and isinstance(value[0], str) and not name.startswith("_"):
                yield name, value
    yield from ts.WORD_RULES.items()
    yield from ((ways[0], ways) for ways, _ in sk.CHAT)


def test_wordings_are_split_into_disjoint_parts():
    for name, templates in template_lists():
        train, held = sk.split_wordings(templates)
        assert set(train) | set(held) == set(templates) and not set(train) & set(held), name
        assert held and len(train) > len(held), name


def test_equal_wordings_fall_on_one_side():
    assert wd.same("Please add {a} and {b} for me.") == wd.same("add {a} and {b}!") and wd.same("What's {a} + {b}?") == wd.same("what is {a} times {b}")
    assert wd.same("Add {a} to {b}.") != wd.same("Add {b} to {a}.")
    for name, templates in template_lists():
        train, held = sk.split_wordings(templates)
        assert not {wd.same(t) for t in train} & {wd.same(t) for t in held}, name
        assert templates[0] in train, name


def test_main_skills_hold_out_many_wordings():
    for name in ("SUM", "DIFF", "PROD", "PROD_STORY", "CAPITAL", "COUNTRY", "COUNT", "REVERSE", "UPPER", "PLURAL", "SPELL", "EXTRACT", "MARK", "MARK_TEXT", "REPEAT"):
        train, held = sk.split_wordings(getattr(sk, name))
        assert len({wd.same(t) for t in held}) >= 40 and len({wd.same(t) for t in train}) >= 200, name
    for name in ("WEATHER", "CALC", "TIME", "FILE", "SEARCH", "SEARCH_K"):
        assert len({wd.same(t) for t in sk.split_wordings(getattr(ts, name))[1]}) >= 20, name
    assert {"{a} + {b}", "What is {a} + {b}?"} <= set(sk.split_wordings(sk.SUM)[0])


def test_training_uses_no_held_out_wording(monkeypatch):
    used, jitter = set(), sk.Ctx.jitter
    monkeypatch.setattr(sk.Ctx, "jitter", lambda ctx, template: used.add(template) or jitter(ctx, template))
    held = {wd.same(t): name for name, templates in template_lists() if isinstance(templates, wd.Wordings) for t in wd.split_wordings(templates)[1]}
    template, rng = data.load_template(), random.Random(11)
    for _ in range(1500):
        data.sample(rng, template)
    assert len(used) > 2000
    for t in used:
        assert "{" not in t or wd.same(t) not in held, (t, held[wd.same(t)])


def test_products_held_out_are_nowhere_in_training():
    pairs = [(a, b) for b in range(2, 13) for a in range(1, b) if sk.is_held("prod", f"{a},{b}")]
    assert len(pairs) == 10
    patterns = [re.compile(rf"(?<!\d){a} [x*] {b}(?!\d)") for a, b in pairs]
    ctx = sk.Ctx(random.Random(3), think=True)
    for _ in range(20000):
        item = sk.multiply(ctx)
        for p in patterns:
            assert not p.search(item["answer"]) and not p.search(item["think"]), item


def test_system_rule_holds_in_every_turn():
    turns = 0
    for seed in range(400):
        item = ts.system_rule(sk.Ctx(random.Random(seed)))
        answers = [c for r, c in item["before"] if r == "assistant"] + [item["answer"]]
        turns += len(answers) > 1
        for a in map(sk.plain, answers):
            if item["think"].endswith("The rule: upper case."):
                assert a == a.upper()
            if item["think"].endswith("The rule: JSON."):
                assert list(json.loads(a)) == ["answer"]
    assert turns > 100


def test_numbers_in_words():
    assert [sk.in_words(n) for n in (0, 7, 12, 20, 42, 99, 100, 105, 340)] == \
        ["zero", "seven", "twelve", "twenty", "forty-two", "ninety-nine", "one hundred", "one hundred five", "three hundred forty"]


def test_expansion_of_phrases():
    assert wd.expand("[a|b] c[| d].") == ["a c.", "a c d.", "b c.", "b c d."]
    assert wd.using(["^, please: @"], ["[go|run] on"]) == ["Go on, please: go on", "Run on, please: run on"]


def test_items_are_split_by_hash():
    assert [sk.is_held("name", n) for n in ("Theo", "Isaac", "Ana", "Max")] == [True, True, True, False]
    for test in (False, True):
        for seed in range(300):
            ctx = sk.Ctx(random.Random(seed), test=test)
            name = ctx.name()
            assert sk.is_held("name", name if name in lx.NAMES else name.lower()) == test
            assert sk.is_held("reverse", sk.reverse_word(ctx)["answer"][1:-1][::-1]) == test
            a, b = map(int, re.findall(r"\d+", sk.add(ctx)["answer"])[:2])
            assert sk.is_held("sum", f"{min(a, b)},{max(a, b)}") == test


def test_training_never_shows_a_held_out_question():
    template, rng = data.load_template(), random.Random(5)
    seen = "\n".join(sk.plain(data.sample(rng, template)) for _ in range(1500))
    for item in data.heldout(4, ["sum", "product", "reverse", "json", "mark", "repeat", "notes", "tool_call"]):
        question = item["messages"][-1]["content"]
        if len(question) > 12:
            assert f"user\n{question}<|im_end|>" not in seen, question


def test_generator_is_deterministic():
    template = data.load_template()

    def sample_digest(seed):
        rng = random.Random(seed)
        return hashlib.sha256("\0".join(data.sample(rng, template) for _ in range(200)).encode()).hexdigest()

    assert sample_digest(7) == sample_digest(7) != sample_digest(8)


def test_expected_answers_score_as_right():
    for item in data.heldout(3):
        m = item["expected"]
        text = m["content"] + "".join(
            f"<tool_call>\n<function={c['function']['name']}>\n" +
            "".join(f"<parameter={k}>\n{v if isinstance(v, str) else json.dumps(v)}\n</parameter>\n" for k, v in c["function"]["arguments"].items()) +
            "</function>\n</tool_call>" for c in m.get("tool_calls", []))
        assert score.correct(m["reasoning_content"] + "\n</think>\n\n" + text + "<|im_end|>", item["check"], item["tools"]), item["id"]
        assert not score.correct("x", item["check"], item["tools"]), item["id"]


def test_target_table():
    rows = [("sum", "seen", "direct", True)] * 20 + [("sum", "seen", "think", i > 0) for i in range(20)] + [("sum", "unseen", m, i > 3) for m in ("direct", "think") for i in range(20)]
    rows += [("reverse", w, m, m == "think") for w in ("seen", "unseen") for m in ("direct", "think")]
    lines = score.target_table(rows).split("\n")
    assert lines[2:] == ["| sums to 99 | 95 | 100.0 / 95.0 | 80.0 / 80.0 | met | **missed** (20.0 points) |", "| reversing | 80 thinking | 0.0 / 100.0 | 0.0 / 100.0 | met | met |"]


def test_pieces_make_up_the_document():
    template, rng = data.load_template(), random.Random(3)
    for _ in range(300):
        text = data.sample(rng, template)
        parts = data.pieces(text)
        assert "".join(p for p, _, _ in parts) == sk.plain(text).lstrip("\ue002")
        assert any(answer for _, answer, _ in parts)


def test_tokenizer_and_prompts():
    pytest.importorskip("tokenizers")
    encoder = data.Encoder()
    assert encoder.tok.get_vocab_size() == 4096
    added = json.loads((data.MODEL / "tokenizer.json").read_text())["added_tokens"]
    assert [t["id"] for t in added] == list(range(4063, 4096))
    decoder = json.loads((data.MODEL / "tokenizer_config.json").read_text())["added_tokens_decoder"]
    assert {int(k): v["content"] for k, v in decoder.items()} == {t["id"]: t["content"] for t in added}
    for item in data.heldout(2, ["json", "reverse", "tool_call"]):
        ids = encoder.ids(item["prompt"])
        assert encoder.tok.decode(ids, skip_special_tokens=False) == item["prompt"]
        messages = item["messages"] + [item["expected"]]
        whole = data.load_template().render(messages=messages, tools=item["tools"], enable_thinking=item["mode"] == "think")
        assert encoder.document(whole)[0][:len(ids)] == ids  # training sees exactly the ids that a prompt has


def test_written_checkpoint():
    path = data.MODEL / "model.safetensors"
    if not path.exists():
        pytest.skip("no trained weights in models/mini")
    with open(path, "rb") as f:
        (length,) = struct.unpack("<Q", f.read(8))
        header = json.loads(f.read(length))
    assert header.pop("__metadata__") == {"format": "mlx"} and (8 + length) % 2 == 1
    assert max(h["data_offsets"][1] for h in header.values()) + 8 + length == path.stat().st_size
    config = json.loads((data.MODEL / "config.json").read_text())
    text = config["text_config"]
    assert header["language_model.model.embed_tokens.weight"]["shape"] == [text["vocab_size"], text["hidden_size"] // 8]
    assert header["language_model.model.layers.7.mlp.gate.weight"]["shape"] == [text["num_experts"], text["hidden_size"] // 4]
    assert len(header) == 3 + 1 + 8 * (2 + 8 * 3) + 2 * (4 * 3 + 2) + 6 * (5 * 3 + 4)
    assert sum(p.stat().st_size for p in data.MODEL.iterdir()) < 10_000_000
    assert sorted(json.loads((data.MODEL / "model.safetensors.index.json").read_text())["weight_map"]) == sorted(header)
