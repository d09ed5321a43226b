# SPDX-License-Identifier: Apache-2.0
"""Which model is taken where -m names none: the small one, found beside the program, or an error; never a random one."""
import os
import shutil
import subprocess

import pytest

from conftest import LILY, ROOT

MINI = ROOT / "models/mini"
PLACES = {  # the program's place to the model's
    "lily": "models/mini", "build/lily": "models/mini", "build/card/lily": "models/mini", "bin/lily": "share/lily/mini",
    "elsewhere/a/b/lily": "models/mini"}  # the last: run from the folder itself


def run(program, *args, cwd, env=None):
    outside = {k: v for k, v in os.environ.items() if k != "LILY_MODEL"}
    return subprocess.run([program, *args], cwd=cwd, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL,
                          env={**outside, **(env or {})})


def put(folder, program):
    path = folder / program
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(LILY, path)
    return path



needs_mini = pytest.mark.skipif(not (MINI / "config.json").exists(), reason="models/mini is not there")
needs_none_installed = pytest.mark.skipif(os.path.exists("/usr/local/share/lily/mini/config.json"),
                                          reason="a small model is installed on this machine")


@needs_mini
@pytest.mark.parametrize("program", PLACES)
def test_the_small_model_is_found_beside_the_program(tmp_path, program):
    path = put(tmp_path, program)
    model = tmp_path / PLACES[program]
    model.parent.mkdir(parents=True, exist_ok=True)
    model.symlink_to(MINI)
    away = tmp_path if program.startswith("elsewhere") else "/"
    done = run(path, "generate", "-p", "What is 12 + 30?", "--no-think", "--temp", "0", "-n", "24", "--backend", "cpu", cwd=away)
    assert done.returncode == 0 and "42" in done.stdout, done.stderr


@needs_none_installed
@pytest.mark.parametrize("args", [
    ["generate", "-p", "hi"], ["chat"], ["serve", "--port", "0"], ["bench"], ["tokenize", "hi"], ["template", "m.json"], ["inspect"],
    ["logits", "--ids", "1", "-o", "never"], ["eval", "golden", str(ROOT / "tests/data/goldens/golden_35b_raw.json")]],
    ids=lambda args: args[0])
def test_without_any_model_every_place_is_named(tmp_path, args):
    (tmp_path / "m.json").write_text('[{"role": "user", "content": "hi"}]')
    done = run(put(tmp_path, "a/b/c/lily"), *args, cwd=tmp_path)
    assert done.returncode == 1 and done.stdout == "" and done.stderr.count("\n") == 1, done.stderr
    for word in ("no model", "-m", "LILY_MODEL", "models/mini", "../models/mini", "../../models/mini", "../share/lily/mini",
                 "/usr/local/share/lily/mini", "working directory", str(tmp_path / "a/b/c")):
        assert word in done.stderr
    assert "synth" not in done.stderr


@needs_none_installed
def test_a_very_long_place_is_one_line_too(tmp_path):
    deep = tmp_path / ("d" * 200) / ("e" * 200) / ("f" * 200)
    done = run(put(deep, "lily"), "generate", "-p", "hi", cwd="/")
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "working directory" in done.stderr


def test_the_environment_names_one_and_the_option_wins(tmp_path):
    path = put(tmp_path, "lily")
    env = {"LILY_MODEL": "synth:tiny,layers=4"}
    assert "synth:tiny" in run(path, "inspect", "--json", cwd=tmp_path, env=env).stdout
    assert "synth:micro" in run(path, "inspect", "--json", "-m", "synth:micro", cwd=tmp_path, env=env).stdout
    missing = run(path, "inspect", cwd=tmp_path, env={"LILY_MODEL": "nowhere"})
    assert missing.returncode == 1 and "nowhere" in missing.stderr
