# SPDX-License-Identifier: Apache-2.0
"""The scripts that measure loading and a busy neighbour, with the commands of docs/performance.md on a tiny model. No speed is judged."""
import json
import re
import shlex
import subprocess
import sys

import pytest
from conftest import LILY, ROOT

NUMBER = r"\d+\.\d\d"


def shown(script):
    lines = [line for line in (ROOT / "docs/performance.md").read_text().splitlines() if line.startswith(f"    python3 bench/{script}")]
    assert lines, script
    return [shlex.split(line.split("#")[0])[2:] for line in lines]


def run(script, *args):
    done = subprocess.run([sys.executable, ROOT / "bench" / script, *args, "--program", LILY], cwd=ROOT, capture_output=True, text=True,
                          timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("model") / "m"
    subprocess.run([LILY, "synth", "--shape", "micro", "-o", out], check=True, capture_output=True)
    return out


@pytest.mark.parametrize("place", ["nothing", "folder", "text"])
@pytest.mark.parametrize("script, target", [("bench_load.py", "make"), ("bench_neighbour.py", "make"), ("bench_serve.py", "make"), ("soak.py", "make"),
                                            ("bench_text.py", "make bench-text")])
def test_a_missing_program_is_one_line(tmp_path, script, target, place):
    if script == "bench_text.py":
        pytest.importorskip("tokenizers", reason="the package tokenizers is not installed")
    path = tmp_path / place
    if place == "folder":
        path.mkdir()
    elif place == "text":
        path.write_text("not to be run")
    done = subprocess.run([sys.executable, ROOT / "bench" / script, "--program", path], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == f"no program {place}: build it with {target}, or name it with --program\n"


def test_a_missing_second_program_is_one_line(tmp_path):
    command = [sys.executable, ROOT / "bench/bench_load.py", "--program", LILY, "--other", tmp_path / "x/y"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stdout == "" and done.stderr.startswith(f"no program {tmp_path}/x/y: ")


@pytest.mark.parametrize("args", shown("bench_load.py"), ids=" ".join)
def test_loading_beside_a_plain_read(folder, args):
    args = [a for a in args if not re.fullmatch(r"--layers|\d+|--other|build/\S+", a)]
    text = run("bench_load.py", *args, "--model", folder, "--turns", "2")
    for state in ("cold", "warm"):
        lines = re.findall(rf"^  {state} [12]: (.+?): {NUMBER} s, {NUMBER} GB/s, {NUMBER} GB from disk", text, flags=re.M)
        assert sorted(set(lines)) == sorted(["plain read", "plain read by all threads", LILY]) and len(lines) == 6
        assert re.search(rf"^{state}: {re.escape(LILY)}: {NUMBER} s, {NUMBER} times the plain read's {NUMBER} s \({NUMBER} \.\. {NUMBER}\)$", text,
                         flags=re.M)
    assert text.count(" of the plan") == 4 and ("(memory " in text) == ("--fresh" not in args)


def test_the_bytes_of_the_vision_tower_are_not_read(folder):
    sys.path.insert(0, str(ROOT / "bench"))
    import bench_load
    pieces = bench_load.pieces_of(folder / "model.safetensors")
    stored = json.loads(subprocess.run([LILY, "inspect", "-m", folder, "--json"], capture_output=True, check=True).stdout)["bytes"]
    assert stored["vision"] > 0 and sum(end - begin for _, begin, end in pieces) == stored["text"]
    assert all(b0 < e0 <= b1 for (_, b0, e0), (_, b1, _) in zip(pieces, pieces[1:]))


@pytest.mark.parametrize("args", shown("bench_neighbour.py"), ids=" ".join)
def test_decoding_beside_a_busy_neighbour(args):
    text = run("bench_neighbour.py", *args, "--model", "synth:micro", "--turns", "2", "--tokens", "4")
    turns = re.findall(r"^turn [12]: alone +[\d.]+ tok/s \(others take -?[\d.]+ CPUs\), beside a neighbour +[\d.]+ \(it takes ([\d.]+), others "
                       r"-?[\d.]+\): \d+%$", text, flags=re.M)
    assert len(turns) == 2, text
    assert re.search(r"^share: median \d+% \(\d+ \.\. \d+\)$", text, flags=re.M)
