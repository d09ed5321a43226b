# SPDX-License-Identifier: Apache-2.0
"""The output parser beside a second reading of the call rules that looks at the whole text.

Calls with damaged insides (seed printed, LILY_TEST_SEED sets it, LILY_TEST_CALLS how many) are read
by both. The helper program is built by `make build/tests/oracle_parse` (LILY_ORACLE_PARSE names
another one).
"""
import os
import random
import re

import pytest

from conftest import json_lines_helper

SEED = int(os.environ.get("LILY_TEST_SEED", "0")) or random.randrange(1, 1 << 32)
N_CALLS = int(os.environ.get("LILY_TEST_CALLS", "20000"))
SPACE = " \t\n\v\f\r"
CLOSE, OPEN, END = "</parameter>", "<parameter=", "</function>"
TOOLS = [{"type": "function", "function": {"name": "run", "parameters": {
    "type": "object", "properties": {"code": {"type": "string"}, "need": {"type": "string"}}}}},
         {"type": "function", "function": {"name": "strict", "parameters": {
             "type": "object", "properties": {"need": {"type": "string"}}, "required": ["need"]}}}]


@pytest.fixture(scope="module")
def helper():
    return json_lines_helper("oracle_parse", "LILY_ORACLE_PARSE")


def unframe(value):
    value = re.sub(r"\A\r?\n", "", value)
    return re.sub(r"\r?\n\Z", "", value)


def find_close(body, start):
    """The first </parameter> that something structural follows; None: there is none."""
    at = body.find(CLOSE, start)
    while at >= 0:
        behind = body[at + len(CLOSE):].lstrip(SPACE)
        if behind == "" or behind.startswith((OPEN, END)):
            return at
        at = body.find(CLOSE, at + 1)
    return None


def read_call(body, required, has_close, is_cut):
    """(arguments, text that is left) of what stands behind <function=NAME>; None: no call."""
    args, pos, is_sure = {}, 0, has_close or not is_cut
    while True:
        pos += len(body[pos:]) - len(body[pos:].lstrip(SPACE))
        if pos == len(body):
            return (args, "") if has_close else None
        if body.startswith(END, pos):
            return args, body[pos + len(END):].strip(SPACE)
        key = re.compile(OPEN + r"([^>\n]*)>").match(body, pos)
        if not key:
            break
        start = key.end()
        at = find_close(body, start)
        line = re.compile(r"(?<=\n)(?:%s|%s)" % (OPEN, END)).search(body, start + 1)
        if at is not None:
            pos = at + len(CLOSE)
        elif not is_sure:
            return None
        elif CLOSE in body[start:]:
            at = body.rfind(CLOSE)
            pos = at + len(CLOSE)
            args[key.group(1).strip(SPACE)] = unframe(body[start:at])
            break
        elif line:
            at = pos = line.start()
        else:
            return None
        args[key.group(1).strip(SPACE)] = unframe(body[start:at])
    rest = body[pos:].strip(SPACE)
    is_ended = rest.endswith(END)
    if not (has_close or is_ended) or any(k not in args for k in required):
        return None
    return args, (rest[:-len(END)] if is_ended else rest).strip(SPACE)


PIECES = ["<parameter=code>", "<parameter=need>", "<parameter=x y>", "<parameter=", "</parameter>",
          "</parameter>", "</parameter>", "</function>", "\n", "\n", "\n", "\n", " ", "\r\n", "a", "b>",
          "<", "</", "</param", "<parameter", "é", "'", "\t", "\n</parameter>\n", "<parameter=code>\n"]


def make_case(r):
    name = r.choice(["run", "run", "strict"])
    body = "".join(r.choice(PIECES) for _ in range(r.randrange(12)))
    if r.random() < 0.6:
        body = "\n<parameter=code>\nx\n</parameter>" + body
    if r.random() < 0.5:
        body += "\n</function>\n"
    has_close = r.random() < 0.7
    is_cut = not has_close and r.random() < 0.5
    head = "A\n<tool_call>\n<function=" + name + ">"
    text = head + body + ("</tool_call>" if has_close else "")
    required = ["need"] if name == "strict" else []
    got = read_call(body, required, has_close, is_cut)
    if got is None:
        want = [], text.rstrip(SPACE)
    else:
        want = [(name, got[0])], "A\n" + got[1] if got[1] else "A"
    return {"output": text, "tools": TOOLS, "is_cut": is_cut, "piece": r.choice([0, 1, 3])}, want


def test_damaged_calls_equal_a_second_reading(helper):
    print("seed", SEED)
    r = random.Random(SEED)
    pairs = [make_case(r) for _ in range(N_CALLS)]
    n_calls = 0
    for (case, want), got in zip(pairs, helper([c for c, _ in pairs])):
        calls = [(c["function"]["name"], c["function"]["arguments"]) for c in got["tool_calls"]]
        assert (calls, got["content"]) == want, f"seed {SEED}: {case['output']!r}"
        n_calls += len(calls)
    assert N_CALLS // 10 < n_calls < N_CALLS * 9 // 10
