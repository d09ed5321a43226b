# SPDX-License-Identifier: Apache-2.0
"""What `make dist` makes runs with nothing of this machine but its C library: from any folder, without an environment, with
another root folder."""
import os
import pathlib
import re
import shutil
import subprocess

import pytest

from conftest import LILY, ROOT

BUILD = pathlib.Path(LILY).resolve().parent
GLIBC = re.compile(r".*/(ld-linux-[^/]*|libc|libm|libpthread|libdl|librt|libresolv)\.so[.\d]*")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder, moved away from where it was made."""
    out = tmp_path_factory.mktemp("made")
    done = subprocess.run(["make", "--no-print-directory", "dist", f"BUILD={BUILD.relative_to(ROOT)}", f"DIST={out}"], cwd=ROOT,
                          capture_output=True, text=True, timeout=600, env={**os.environ, "MAKEFLAGS": ""})
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = out.iterdir()
    version = (ROOT / "VERSION").read_text().strip()
    assert re.fullmatch(rf"lily-{re.escape(version)}-linux-\w+", made.name)
    return made.rename(tmp_path_factory.mktemp("moved") / "a folder")


def run(*command, cwd="/", **env):
    return subprocess.run([str(c) for c in command], cwd=cwd, env=env, capture_output=True, text=True, timeout=300)


def test_it_holds_what_a_machine_without_packages_needs(folder):
    for path in ("lily", "check.sh", "LICENSE", "README.md", "VERSION", "docs/performance.md", "models/mini/model.safetensors",
                 "models/mini/tokenizer.json", "oracle/tiny-a/config.json", "oracle/golden-5.json", "oracle/golden-129.json"):
        assert (folder / path).is_file(), path
    assert not any(GLIBC.fullmatch(str(p)) for p in (folder / "lib").iterdir())
    assert str(ROOT) not in (folder / "check.sh").read_text()


def test_every_library_is_its_own_or_the_c_library_s(folder):
    done = run(folder / "lily", "--version", LD_DEBUG="libs")
    assert done.returncode == 0, done.stderr
    loaded = set(re.findall(r"calling init: (\S.*)", done.stderr))
    assert len(loaded) > 20
    foreign = [p for p in loaded if not p.startswith(f"{folder}/lib/") and not GLIBC.fullmatch(p)]
    assert not foreign, foreign


def test_the_check_passes_without_an_environment_and_from_elsewhere(folder):
    done = run(folder / "check.sh")
    assert done.returncode == 0 and done.stdout.endswith("all checks passed\n"), done.stdout + done.stderr


def test_the_check_fails_where_an_answer_is_wrong(folder, tmp_path):
    other = tmp_path / "spoilt"
    shutil.copytree(folder, other)
    path = other / "oracle/golden-5.json"
    path.write_text(re.sub(r'"topk": \[\[(\d+), ', r'"topk": [[\1, 1', path.read_text()).replace("1-", "-1"))
    check = other / "check.sh"
    check.write_text(check.read_text().replace("./lily doctor ||", ": ||"))  # its meters take a while
    done = run(check)
    assert done.returncode == 1 and "FAILED:" in done.stdout and "all checks passed" not in done.stdout
    assert "expected at most" in done.stderr


def test_the_device_check_tells_which_part_failed(tmp_path):
    (tmp_path / "tests").mkdir()
    program = tmp_path / "tests/test_cuda_device"
    for status, last in ((0, "everything passed"), (3, "FAILED: tests")):
        program.write_text(f"#!/bin/sh\necho '[  PASSED  ] 5 tests'\nexit {status}\n")
        program.chmod(0o755)
        done = run("/bin/sh", ROOT / "tools/device_check.sh", tmp_path, PATH=os.environ["PATH"], PARTS="tests")
        assert done.stdout.endswith(f"device check: {last}\n") and f"tests: exit {status}" in done.stdout
        assert "[  PASSED  ] 5 tests" in done.stdout and done.returncode == (status != 0)


def test_the_check_passes_in_a_root_of_its_own(folder, tmp_path):
    """No /etc, no program but a shell."""
    if os.geteuid() != 0 or not shutil.which("chroot") or not os.path.exists("/bin/sh"):
        pytest.skip("changing the root folder is not allowed here")
    needed = {os.path.realpath("/bin/sh"): "/bin/sh"}
    listed = subprocess.run(["ldd", folder / "lily"], capture_output=True, text=True, check=True).stdout
    listed += subprocess.run(["ldd", "/bin/sh"], capture_output=True, text=True, check=True).stdout
    for path in re.findall(r"(/\S+) \(0x", listed):
        if GLIBC.fullmatch(path):
            needed[os.path.realpath(path)] = path
    for source, place in needed.items():
        to = tmp_path / place.lstrip("/")
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, to)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/null").write_text("")
    shutil.copytree(folder, tmp_path / "opt/lily")
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/exe").symlink_to("/opt/lily/lily")  # by it the loader finds what lies beside a program
    if run(shutil.which("chroot"), tmp_path, "/bin/sh", "-c", "exit 7").returncode != 7:
        pytest.skip("changing the root folder is not allowed here")
    done = run(shutil.which("chroot"), tmp_path, "/opt/lily/check.sh")
    assert done.returncode == 0 and done.stdout.endswith("all checks passed\n"), done.stdout + done.stderr
