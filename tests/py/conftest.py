# SPDX-License-Identifier: Apache-2.0
"""What the Python tests share: the program under test and how to run it."""
import json
import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
LILY = os.environ.get("LILY", str(ROOT / "build/lily"))
ORACLE = ROOT / "tests/data/oracle"


class Result:
    def __init__(self, done):
        self.status = done.returncode
        self.out = done.stdout
        self.err = done.stderr.decode(errors="replace")

    @property
    def text(self):
        return self.out.decode()


def run_lily(*args, stdin=b"", env=None, timeout=120):
    done = subprocess.run([LILY, *map(str, args)], input=stdin, capture_output=True, cwd=ROOT, timeout=timeout,
                          env={**os.environ, **(env or {})})
    return Result(done)


@pytest.fixture
def lily():
    return run_lily


@pytest.fixture(scope="session")
def openai():
    return pytest.importorskip("openai", reason="the package openai is not installed")


def json_lines_helper(name, variable):
    """A function from a list of values to the answers of tests/unit/NAME.c; an environment variable may name
    another program."""
    path = os.environ.get(variable)
    if not path:
        path = f"build/tests/{name}"
        subprocess.run(["make", "-s", path], cwd=ROOT, check=True)

    def ask(cases):
        text = "".join(json.dumps(c) + "\n" for c in cases)
        out = subprocess.run([path], cwd=ROOT, input=text, stdout=subprocess.PIPE, text=True, encoding="utf-8", check=True)
        answers = [json.loads(line) for line in out.stdout.split("\n")[:-1]]
        assert len(answers) == len(cases)
        return answers
    return ask


def read_safetensors(path):
    """{name: (shape, list of floats)} of an F32 file."""
    import struct
    data = pathlib.Path(path).read_bytes()
    (n,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + n])
    out = {}
    for name, t in header.items():
        if name == "__metadata__":
            continue
        begin, end = t["data_offsets"]
        raw = data[8 + n + begin:8 + n + end]
        if t["dtype"] == "F32":
            values = struct.unpack(f"<{len(raw) // 4}f", raw)
        elif t["dtype"] == "U32":
            values = struct.unpack(f"<{len(raw) // 4}I", raw)
        else:
            continue
        out[name] = (t["shape"], values)
    return out
