# SPDX-License-Identifier: Apache-2.0
"""The native chat template beside jinja2 rendering the published files.

Random conversations (seed printed, LILY_TEST_SEED sets it, LILY_TEST_CHATS how many) go through
both; text and error sentences must be the same byte for byte. The trusted bits are checked by
rendering with marked message texts. Needs jinja2 and the helper program that
`make build/tests/oracle_chat` builds (LILY_ORACLE_CHAT names another one).
"""
import json
import os
import random
import struct

import jinja2
import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from conftest import ROOT, json_lines_helper

DATA = ROOT / "tests/data/qwen36"
SEED = int(os.environ.get("LILY_TEST_SEED", "0")) or random.randrange(1, 1 << 32)
N_CHATS = int(os.environ.get("LILY_TEST_CHATS", "3000"))
TEMPLATES = {
    "qwen3.6": "chat_template.jinja",
    "qwen3.5": "chat_template_qwen3.5.jinja",
    "qwen3.5-small": "chat_template_qwen3.5-small.jinja",
}
TYPE_ERRORS = ("arguments of a tool call: ", "name of a tool call: ", "tool_calls: ")


class Raised(Exception):
    pass


def raise_exception(sentence):
    raise Raised(sentence)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                      sort_keys=sort_keys)


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    return env


ENV = environment()
REFERENCE = {name: ENV.from_string((DATA / file).read_text()) for name, file in TEMPLATES.items()}


def reference(case):
    """("text", t), ("error", sentence) or ("type error", None)."""
    try:
        kwargs = dict(case["options"])
        if case["tools"] is not None:
            kwargs["tools"] = case["tools"]
        return "text", REFERENCE[case["family"]].render(messages=case["messages"], **kwargs)
    except Raised as e:
        return "error", str(e)
    except (TypeError, jinja2.exceptions.UndefinedError):
        return "type error", None


@pytest.fixture(scope="module")
def helper():
    return json_lines_helper("oracle_chat", "LILY_ORACLE_CHAT")


WORDS = ["a", "Bonn", " ", "  x", "\n", "\n\n", "\t", "<think>", "</think>", "<|im_end|>", "Zwölf",
         "<tool_response>", "</tool_response>", "<tool_call>", "\u3000", "\x1c", "\u200b", "\x85",
         "\xa0", "𝄞", "'", '"', "\\", "&lt;", "{", "}", "\x00", "\x7f", "\u2028", "</parameter>",
         "1", "-", "\r\n", "<", ">", "\x0b", "\x1f", "é", "你好", "/no_think"]


class Maker:
    def __init__(self, seed):
        self.r = random.Random(seed)

    def text(self):
        r = self.r
        if r.random() < 0.1:
            return ""
        if r.random() < 0.08:
            return "<tool_response>" + self.text() + "</tool_response>"
        if r.random() < 0.15:
            return "<think>\n" + self.text() + "\n</think>\n\n" + self.text()
        return "".join(r.choice(WORDS) for _ in range(r.randrange(1, 8)))

    def key(self):
        return "".join(self.r.choice(["city", "a", "ü", " ", '"', "x1"])
                       for _ in range(self.r.randrange(1, 3)))

    def number(self):
        r = self.r
        return r.choice([
            0, 1, -1, 42, 2 ** 63 - 1, -2 ** 63, 0.0, -0.0, 1.0, 1.5, 0.1, 1e16, 1e15, 123456789.125,
            1e-4, 1e-5, 5e-324, 1.7976931348623157e308, 1e22, 1e23, r.uniform(-1000, 1000),
            r.randrange(-10 ** 9, 10 ** 9), r.uniform(-1, 1) * 10.0 ** r.randrange(-300, 300)])

    def value(self, depth=0):
        r = self.r
        kind = r.randrange(9 if depth < 3 else 6)
        if kind < 2:
            return self.text()
        if kind == 2:
            return self.number()
        if kind == 3:
            return r.choice([True, False, None])
        if kind < 6:
            return self.number()
        if kind < 8:
            return [self.value(depth + 1) for _ in range(r.randrange(4))]
        return {self.key(): self.value(depth + 1) for _ in range(r.randrange(4))}

    def part(self):
        r = self.r
        return r.choice([
            lambda: {"type": "text", "text": self.text()},
            lambda: {"text": self.text()},
            lambda: {"type": "image_url", "image_url": {"url": "x"}},
            lambda: {"type": "image"},
            lambda: {"image": None},
            lambda: {"type": "video", "video": "v"},
            lambda: {"type": "video"},
            lambda: {"type": "text", "text": r.choice([3, 1.5, True, None])},
            lambda: {"type": "audio"} if r.random() < 0.2 else {"type": "text", "text": self.text()},
        ])()

    def content(self):
        r = self.r
        x = r.random()
        if x < 0.7:
            return self.text()
        if x < 0.9:
            return [self.part() if r.random() < 0.5 else {"type": "text", "text": self.text()}
                    for _ in range(r.randrange(4))]
        if x < 0.97:
            return None
        return r.choice([5, True, {"a": 1}, 1.5])

    def call(self):
        r = self.r
        inner = {"name": r.choice(["f", "get_weather", "", "ü"])}
        if r.random() < 0.9:
            inner["arguments"] = {self.key(): self.value() for _ in range(r.randrange(4))}
        if r.random() < 0.03:
            inner["arguments"] = r.choice(["{}", None, [], 3, ""])
        if r.random() < 0.03:
            inner["name"] = r.choice([3, None])
        if r.random() < 0.03:
            del inner["name"]
        if r.random() < 0.3:
            return inner
        return {"id": "c1", "type": "function",
                "function": inner if r.random() < 0.97 else None}

    def message(self, role):
        r = self.r
        m = {"role": role}
        if r.random() < 0.95:
            m["content"] = self.content()
        if role == "assistant":
            if r.random() < 0.5:
                m["reasoning_content"] = r.choice([self.text(), self.text(), "", None, 5])
            if r.random() < 0.5:
                m["tool_calls"] = [self.call() for _ in range(r.randrange(4))]
            if r.random() < 0.03:
                m["tool_calls"] = r.choice([None, "", "xy", {}, {"a": 1}, 7, 0, True])
        if role == "tool" and r.random() < 0.5:
            m["tool_call_id"] = "c1"
        return m

    def case(self):
        r = self.r
        roles = []
        if r.random() < 0.4:
            roles.append("system")
        for _ in range(r.randrange(7)):
            roles.append(r.choice(["user", "assistant", "tool", "user", "assistant"]))
        if r.random() < 0.9:
            roles.insert(len(roles) if r.random() < 0.3 else min(len(roles), 1), "user")
        if r.random() < 0.05:
            roles.insert(r.randrange(len(roles) + 1), r.choice(["system", "developer", "", None, 3]))
        tools = r.choice([None, None, [], [self.tool() for _ in range(r.randrange(1, 4))], {"a": 1}])
        options = {}
        for name, values in {
                "add_generation_prompt": [True, False], "enable_thinking": [True, False, None, 0],
                "preserve_thinking": [True, False, "true", None],
                "add_vision_id": [True, False]}.items():
            if r.random() < 0.5:
                options[name] = r.choice(values)
        return {"family": r.choice(list(TEMPLATES)), "messages": [self.message(x) for x in roles],
                "tools": tools, "options": options}

    def tool(self):
        return {"type": "function", "function": {
            "name": "get_weather", "description": self.text(),
            "parameters": {"type": "object", "properties": {self.key(): self.value()}}}}


def test_template_equals_jinja2_over_generated_conversations(helper):
    print("seed", SEED)
    maker = Maker(SEED)
    cases = [maker.case() for _ in range(N_CHATS)]
    seen = {"text": 0, "error": 0, "type error": 0}
    for case, got in zip(cases, helper(cases)):
        kind, want = reference(case)
        seen[kind] += 1
        where = f"seed {SEED}: {json.dumps(case)}"
        if kind == "type error":
            assert got.get("error", "").startswith(TYPE_ERRORS), where
        elif kind == "error":
            assert got.get("error") == want, where
        else:
            assert got.get("text") == want, where
    print(seen)
    assert all(n > N_CHATS // 100 for n in seen.values())


def test_trusted_bits_mark_exactly_what_the_template_wrote(helper):
    """Message texts use letters that no template text has, so each byte's origin is known."""
    mark = str.maketrans({c: "\u00ff" for c in map(chr, range(0x21, 0x80))})

    def marked(v):
        if isinstance(v, str):
            return v.translate(mark)
        if isinstance(v, list):
            return [marked(x) for x in v]
        if isinstance(v, dict):
            return {k.translate(mark): marked(x) for k, x in v.items()}
        return None

    maker = Maker(SEED + 1)
    cases = []
    for _ in range(300):
        case = maker.case()
        case["tools"] = None
        for m in case["messages"]:
            if m.get("role") == "system" and m is not case["messages"][0]:
                m["role"] = "user"
            m["content"] = marked(maker.text())
            if "reasoning_content" in m:
                m["reasoning_content"] = marked(maker.text())
            if isinstance(m.get("tool_calls"), list):
                m["tool_calls"] = [{"name": "\u00ff", "arguments": {"\u00ff": marked(maker.text())}}
                                   for _ in m["tool_calls"]]
        cases.append(case)
    n_seen = 0
    for case, got in zip(cases, helper(cases)):
        if "text" not in got:
            continue
        raw = got["text"].encode()
        bits = bytearray(len(raw))
        for start, end in got["trusted"]:
            bits[start:end] = b"\1" * (end - start)
        for i, byte in enumerate(raw):
            if byte >= 0x80:
                assert not bits[i], (SEED, case)
            elif byte > 0x20:
                assert bits[i], (SEED, case)
        n_seen += 1
    assert n_seen > 100


def test_json_numbers_equal_python(helper):
    r = random.Random(SEED + 2)
    values = [2.0 ** e for e in range(-1074, 1024)]
    values += [struct.unpack("<d", struct.pack("<Q", r.getrandbits(64)))[0] for _ in range(5000)]
    values += [round(r.uniform(0, 10 ** 6), r.randrange(6)) for _ in range(1000)]
    values += [float(10 ** e) for e in range(0, 309)] + [10.0 ** -e for e in range(0, 324)]
    values += [float(2 ** 53 + i) for i in range(-3, 4)] + [9.5, 99.5, 0.3, 1 / 3, 9.999999999999999e22]
    values = [v for v in values if v == v and abs(v) != float("inf")]
    for v, got in zip(values, helper([{"json": v} for v in values])):
        assert got["text"] == json.dumps(v)


def recorded():
    for file in ("test_vectors_hebrus.json", "test_vectors_generated.json"):
        for v in json.loads((DATA / file).read_text())["chat_vectors"]:
            yield v


def test_recorded_vectors_agree_with_jinja2_here():
    """Guards the oracle itself: this environment renders what the recorded stack rendered."""
    n = 0
    for v in recorded():
        kwargs = dict(v["kwargs"])
        case = {"family": "qwen" + v.get("template", "3.6"), "messages": v["messages"],
                "tools": kwargs.pop("tools", None), "options": kwargs}
        kind, text = reference(case)
        if "rendered" in v:
            assert (kind, text) == ("text", v["rendered"]), v["name"]
        elif kind == "error":
            assert text == v["error"], v["name"]
        else:
            assert kind == "type error" and v["error"].startswith("type error"), v["name"]
        n += 1
    assert n == 117


@pytest.mark.parametrize("family", list(TEMPLATES))
def test_lenient_equals_strict_where_the_reference_renders(helper, family):
    maker = Maker(SEED + 3)
    cases = []
    for _ in range(400):
        case = maker.case()
        case["family"] = family
        cases.append(case)
    lenient = [dict(c, options=dict(c["options"], is_lenient=True)) for c in cases]
    n = 0
    for case, strict, got in zip(cases, helper(cases), helper(lenient)):
        if "text" in strict:
            assert got == strict, (SEED, case)
            n += 1
    assert n > 100
