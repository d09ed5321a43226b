# SPDX-License-Identifier: Apache-2.0
"""What the Python tests share: the program under test and how to run it."""
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


def read_safetensors(path):
    """{name: (shape, list of floats)} of an F32 file."""
    import json
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
