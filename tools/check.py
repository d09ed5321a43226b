#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the whole test suite and prints `N passed, N failed, N skipped` last.

Steps: tree, builds with gcc and clang, unit tests, fuzz corpora, address+undefined and thread
sanitizers on the fast part, the Python tests. `--long` adds the long sizes.
"""
import argparse
import concurrent.futures
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
JOBS = str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count())
# What the thread sanitizer runs: everything that starts threads.
THREADED = ["test_api", "test_device_lost", "test_stream", "test_job", "test_engine_pause", "test_pool", "test_engine", "test_cpu_equal", "test_weights", "test_synth"]
# The amx column on emulated tiles (Makefile: AMX_TESTS), beside the same tests on what the CPU has.
EMULATED = ["test_cpu_matmul_amx", "test_cpu_attn_amx", "test_cpu_recur_amx", "test_cpu_equal_amx", "test_cpu_oracle_amx"]
# Whole models on an emulated card, and in many forms on emulated tiles: many minutes under a sanitizer.
UNSANITIZED = ["test_cuda_emu", "test_cpu_equal_amx"]
PYPI = ["pytest", "jinja2", "tokenizers", "openai"]
PYPI_WANTED = {"langchain_openai": "langchain-openai", "selenium": "selenium"}  # tests that need one are skipped without it


class Suite:
    def __init__(self):
        self.passed = self.failed = self.skipped = 0
        self.faults = []
        self.lock = threading.Lock()

    def add(self, *result):
        with self.lock:
            self.add_locked(*result)

    def add_locked(self, name, passed, failed, skipped, seconds, output=""):
        self.passed += passed
        self.failed += failed
        self.skipped += skipped
        mark = "FAILED" if failed else "ok"
        extra = f", {skipped} skipped" if skipped else ""
        print(f"{mark:6} {name}: {passed} passed, {failed} failed{extra} ({seconds:.1f} s)", flush=True)
        for line in re.findall(r"^skipped: .*|^SKIPPED .*", output, flags=re.M):
            print(f"       {line}", flush=True)
        if failed:
            self.faults.append(name)
            print(output[-6000:], flush=True)

    def skip(self, name, why):
        self.skipped += 1
        print(f"skip   {name}: {why}", flush=True)

    def run(self, name, command, count=None, env=None):
        """One command; count(output, status) -> (passed, failed, skipped), default its exit status."""
        start = time.time()
        try:
            done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  env={**os.environ, **(env or {})}, timeout=1500)
            output, status = done.stdout.decode(errors="replace"), done.returncode
        except subprocess.TimeoutExpired as e:
            output, status = (e.stdout or b"").decode(errors="replace") + "\ntimed out", 124
        counts = count(output, status) if count else (int(status == 0), int(status != 0), 0)
        self.add(name, *counts, time.time() - start, output)
        return status == 0


def count_cmocka(output, status):
    passed = sum(int(n) for n in re.findall(r"^\[  PASSED  \] (\d+) test", output, flags=re.M))
    skipped = sum(int(n) for n in re.findall(r"^\[  SKIPPED \] (\d+) test", output, flags=re.M))
    failed = sum(int(n) for n in re.findall(r"^\[  FAILED  \] (\d+) test", output, flags=re.M))
    skipped += len(re.findall(r"^skipped: ", output, flags=re.M))  # a program that this machine cannot run at all
    if status and not failed:
        failed = 1
    if not status and not passed and not skipped:
        failed = 1  # a test program that ran nothing
    return passed, failed, skipped


def count_pytest(output, status):
    found = {w: int(n) for n, w in re.findall(r"(\d+) (passed|failed|skipped|error)", output.splitlines()[-1] if output else "")}
    failed = found.get("failed", 0) + found.get("error", 0)
    if status and not failed:
        failed = 1
    return found.get("passed", 0), failed, found.get("skipped", 0)


def make(suite, name, *args):
    return suite.run(name, ["make", "--no-print-directory", "-j" + JOBS, *args])


def unit_tests(suite, build, names, label, env=None):
    """As many at a time as there are CPUs: each program mostly keeps one busy."""
    with concurrent.futures.ThreadPoolExecutor(int(JOBS)) as pool:
        list(pool.map(lambda t: suite.run(f"{label}{t}", [f"{build}/tests/{t}"], count_cmocka, env), names))


def sanitized_server(suite, build, label):
    """A short mixed load on the server; a report of the sanitizer is an exit status that is not 0."""
    python = ROOT / ".venv/bin/python"
    if not python.exists():
        suite.skip(f"{label}: server under load", "no Python packages")
        return
    suite.run(f"{label}: server under load", [str(python), "-m", "pytest", "-q", "tests/py/test_server_load.py"], count_pytest,
              {"LILY": f"{build}/lily", "LILY_SLOW": "8"})


def python_tests(suite, is_long):
    venv = ROOT / ".venv"
    python = venv / "bin/python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=False, capture_output=True)
    have = subprocess.run([str(python), "-c", "import " + ", ".join(PYPI)], capture_output=True).returncode == 0
    if not have:
        subprocess.run([str(python), "-m", "pip", "install", "-q", *PYPI], check=False, capture_output=True)
        have = subprocess.run([str(python), "-c", "import " + ", ".join(PYPI)], capture_output=True).returncode == 0
    if not have:
        suite.skip("python tests", "the packages " + ", ".join(PYPI) + " could not be had from PyPI")
        return
    for module, package in PYPI_WANTED.items():
        if subprocess.run([str(python), "-c", f"import {module}"], capture_output=True).returncode:
            subprocess.run([str(python), "-m", "pip", "install", "-q", package], check=False, capture_output=True)
    folders = ["tests/py"] + (["tools/mini"] if (ROOT / "tools/mini").exists() else [])
    suite.run("python tests", [str(python), "-m", "pytest", "-q", "-rs", *folders], count_pytest,
              {"LILY_LONG": "1" if is_long else ""})


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--long", action="store_true", help="the long sizes too")
    options = parser.parse_args()
    os.chdir(ROOT)
    suite = Suite()
    env = {"LILY_LONG": "1"} if options.long else None
    tests = sorted(p.stem for p in (ROOT / "tests/unit").glob("test_*.c"))
    if platform.machine() == "x86_64":
        tests += EMULATED
    suite.run("tree", [sys.executable, "tools/tree_check.py"])
    if make(suite, "build with gcc", "all", "library", "docs", "build/bench_text", "build/data/qwen36/tokenizer.json",
            *[f"build/tests/{t}" for t in tests]):
        unit_tests(suite, "build", tests, "", env)
        make(suite, "fuzz corpora", "fuzz-replay")
        python_tests(suite, options.long)
    if shutil.which("clang"):
        make(suite, "build with clang", "CC=clang", "CUDA=0", "BUILD=build/clang", "build/clang/lily")
        sanitized = [t for t in tests if t not in UNSANITIZED]
        asan = ["CC=clang", "CUDA=0", "BUILD=build/asan", "SAN=address,undefined", "O=-O1"]
        if make(suite, "build with address and undefined sanitizers", *asan, *[f"build/asan/tests/{t}" for t in sanitized], "build/asan/lily"):
            unit_tests(suite, "build/asan", sanitized, "address+undefined: ")
            sanitized_server(suite, "build/asan", "address+undefined")
            make(suite, "fuzz corpora, address+undefined", *asan, "fuzz-replay")
        threaded = [t for t in THREADED if t in tests]
        tsan = ["CC=clang", "CUDA=0", "BUILD=build/tsan", "SAN=thread", "O=-O1"]
        if make(suite, "build with the thread sanitizer", *tsan, *[f"build/tsan/tests/{t}" for t in threaded], "build/tsan/lily"):
            unit_tests(suite, "build/tsan", threaded, "thread: ")
            sanitized_server(suite, "build/tsan", "thread")
    else:
        suite.skip("clang and sanitizers", "clang is not installed")
    if suite.faults:
        print("failed: " + ", ".join(suite.faults))
    print(f"{suite.passed} passed, {suite.failed} failed, {suite.skipped} skipped")
    return 1 if suite.failed else 0


if __name__ == "__main__":
    sys.exit(main())
