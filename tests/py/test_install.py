# SPDX-License-Identifier: Apache-2.0
"""What `make install` puts where, seen from a program that only knows the installed files; and the manual page and
completions beside the help that they come from."""
import os
import pathlib
import re
import shutil
import subprocess

import pytest

from conftest import LILY, ROOT
from test_chat import Terminal

BUILD = pathlib.Path(LILY).resolve().parent
PREFIX = "/opt/lily"
TINY = "synth:tiny,layers=1"


def run(*command, env=None, **more):
    done = subprocess.run([str(c) for c in command], capture_output=True, timeout=300, env={**os.environ, **(env or {})},
                          **more)
    assert done.returncode == 0, (command, done.stdout.decode()[-2000:], done.stderr.decode()[-2000:])
    return done.stdout.decode()


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The folder that stands for the root of the file system."""
    root = tmp_path_factory.mktemp("root")
    run("make", "--no-print-directory", "install", f"BUILD={BUILD.relative_to(ROOT)}", f"DESTDIR={root}", f"PREFIX={PREFIX}",
        cwd=ROOT, env={"MAKEFLAGS": ""})
    return root


def pkg_config(installed, *args):
    return run("pkg-config", *args, "lily", env={"PKG_CONFIG_PATH": f"{installed}{PREFIX}/lib/pkgconfig",
                                                  "PKG_CONFIG_SYSROOT_DIR": str(installed)}).split()


def compiler():
    return os.environ.get("CC", "cc")


def test_files_are_where_they_belong(installed):
    base = pathlib.Path(f"{installed}{PREFIX}")
    for path in ("bin/lily", "include/lily.h", "lib/liblily.a", "lib/liblily.so", "lib/liblily.so.0",
                 "lib/pkgconfig/lily.pc", "share/man/man1/lily.1", "share/bash-completion/completions/lily",
                 "share/zsh/site-functions/_lily", "share/fish/vendor_completions.d/lily.fish",
                 "share/doc/lily/LICENSE", "share/doc/lily/chat.c"):
        assert (base / path).is_file(), path
    assert os.access(base / "bin/lily", os.X_OK)
    if (ROOT / "models/mini/config.json").exists():
        assert (base / "share/lily/mini/model.safetensors").is_file()
    # Nothing outside the prefix, and no trace of the folder that stood for the root.
    assert [p.name for p in installed.iterdir()] == ["opt"]
    assert str(installed) not in (base / "lib/pkgconfig/lily.pc").read_text()


def test_a_new_commit_alone_is_named_by_what_is_built(tmp_path):
    """Every record of a measurement names the commit: with no file newer it named the one before."""
    program = tmp_path / "src/cli/main.o"

    def build(commit):
        run("make", "--no-print-directory", f"BUILD={tmp_path}", f"COMMIT={commit}", program, cwd=ROOT, env={"MAKEFLAGS": ""})
        return program.read_bytes(), program.stat().st_mtime_ns
    code, made = build("1234567890")
    assert b"1234567890" in code
    assert build("1234567890") == (code, made)
    assert b"abcdef0123" in build("abcdef0123")[0]


def test_the_installed_program_finds_the_small_model(installed):
    if not (ROOT / "models/mini/config.json").exists():
        pytest.skip("models/mini is not there")
    out = run(f"{installed}{PREFIX}/bin/lily", "generate", "-p", "What is 12 + 30?", "--no-think", "--temp", "0", cwd="/")
    assert "42" in out


@pytest.mark.parametrize("kind", ["shared", "static"])
def test_the_example_builds_and_runs_against_the_installed_files(installed, tmp_path, kind):
    source = tmp_path / "chat.c"
    shutil.copy(ROOT / "examples/chat.c", source)
    lib = f"{installed}{PREFIX}/lib"
    if kind == "shared":
        libs = pkg_config(installed, "--libs")
    else:
        libs = [f"{lib}/liblily.a"] + [x for x in pkg_config(installed, "--static", "--libs")
                                       if x != "-llily" and str(installed) not in x]
    run(compiler(), "-std=c17", "-Wall", "-Wextra", "-Wpedantic", "-Werror", *pkg_config(installed, "--cflags"), source, "-o",
        tmp_path / "chat", *libs, cwd=tmp_path)
    env = {"LD_LIBRARY_PATH": lib} if kind == "shared" else {"LD_LIBRARY_PATH": ""}
    model = f"{installed}{PREFIX}/share/lily/mini"
    if pathlib.Path(model).exists():
        out = run(tmp_path / "chat", model, "What is 12 + 30?", cwd=tmp_path, env=env)
        assert re.search(r"42(?s:.*)\n\d+ tokens\n$", out)
    bad = subprocess.run([tmp_path / "chat", "/nowhere", "x"], capture_output=True, env={**os.environ, **env})
    assert bad.returncode == 1 and b"/nowhere" in bad.stderr and bad.stdout == b""


def test_the_header_is_c_and_cplusplus(installed, tmp_path):
    source = tmp_path / "empty.c"
    source.write_text("#include <lily.h>\nint main(void) { return lily_version() == 0; }\n")
    flags = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", *pkg_config(installed, "--cflags")]
    run(compiler(), "-std=c99", *flags, source)
    if shutil.which("g++"):
        run("g++", "-x", "c++", "-std=c++11", *flags, source)


def names(*command):
    return {line.split()[-1].split("@")[0] for line in run(*command).splitlines() if len(line.split()) >= 3 and
            line.split()[-2] != "A"}


def test_only_public_names_are_exported(installed):
    header = (ROOT / "include/lily.h").read_text()
    public = set(re.findall(r"^LILY_API [^;(]*?\b(lily_\w+)\(", header, flags=re.M))
    assert len(public) >= 15
    lib = f"{installed}{PREFIX}/lib"
    assert names("nm", "-D", "--defined-only", f"{lib}/liblily.so.0") == public
    assert names("nm", "-g", "--defined-only", f"{lib}/liblily.a") == public
    assert "liblily.so.0" in run("readelf", "-d", f"{lib}/liblily.so.0")


def test_the_library_neither_prints_nor_ends_the_process(installed):
    """Beside the check that stops a program that is wrong, nothing of that kind is even imported."""
    used = {line.split()[-1].split("@")[0] for line in
            run("nm", "--undefined-only", f"{installed}{PREFIX}/lib/liblily.a").splitlines() if line}
    assert not used & {"exit", "_exit", "printf", "puts", "putchar", "stdout", "signal", "sigaction", "setlocale"}
    assert used & {"abort"}


# ---- manual page and completions ----

def verbs_and_options():
    top = run(LILY, "--help")
    verbs = re.findall(r"^  ([a-z]+) +\S", top, flags=re.M)
    assert {"generate", "chat", "bench", "synth"} <= set(verbs) and "docs" not in verbs
    return {v: re.findall(r"^  (?:-\w, |    )--([\w-]+)", run(LILY, v, "--help"), flags=re.M) for v in verbs}


def sections(text, begin):
    """{verb: its part of the text}; a part begins where `begin` (a pattern with one group) matches."""
    places = list(re.finditer(begin, text, flags=re.M))
    ends = [m.start() for m in places[1:]] + [len(text)]
    return {m.group(1): text[m.end():e] for m, e in zip(places, ends)}


def test_every_verb_and_option_is_in_the_manual_page(installed):
    text = pathlib.Path(f"{installed}{PREFIX}/share/man/man1/lily.1").read_text().replace("\\-", "-")
    parts = sections(text, r'^\.SS "lily (\w+)')
    for verb, options in verbs_and_options().items():
        for o in options:
            if o != "help":
                assert re.search(rf"--{o}\b", parts[verb]), (verb, o)
    for command in re.findall(r"^  (/[\w-]+)", run(LILY, "chat", "--no-think", "-m", TINY, input=b"/help\n"), flags=re.M):
        assert f".B {command} " in text
    if shutil.which("groff"):
        assert subprocess.run(["groff", "-man", "-Tutf8", "-ww", "-z", f"{installed}{PREFIX}/share/man/man1/lily.1"],
                              capture_output=True).stderr == b""


@pytest.mark.parametrize("shell, path, begin", [
    ("bash", "bash-completion/completions/lily", r"^ +(\w+)\) options="),
    ("zsh", "zsh/site-functions/_lily", r"^    (\w+)\)$"),
])
def test_every_verb_and_option_is_completed(installed, shell, path, begin):
    file = pathlib.Path(f"{installed}{PREFIX}/share") / path
    parts = sections(file.read_text(), begin)
    for verb, options in verbs_and_options().items():
        for o in options:
            assert re.search(rf"--{o}\b", parts[verb]), (verb, o)
    if shutil.which(shell):
        run(shell, "-n", file)


def test_every_verb_and_option_is_completed_in_fish(installed):
    file = pathlib.Path(f"{installed}{PREFIX}/share/fish/vendor_completions.d/lily.fish")
    text = file.read_text()
    for verb, options in verbs_and_options().items():
        assert f"-n __fish_use_subcommand -a {verb} " in text
        for o in options:
            if o != "help":
                assert re.search(rf"'__fish_seen_subcommand_from {verb}' -l {o}\b", text), (verb, o)
    if shutil.which("fish"):
        run("fish", "--no-execute", file)


def complete(installed, *words):
    """What bash offers for the last of these words."""
    script = (f"source {installed}{PREFIX}/share/bash-completion/completions/lily; COMP_WORDS=(lily {' '.join(words)}); "
              f"COMP_CWORD={len(words)}; _lily; printf '%s\\n' \"${{COMPREPLY[@]}}\"")
    return run("bash", "-c", script).split()


# What is typed behind `lily`, and what is offered for its last word.
COMPLETIONS = [("gen", ["generate"]), ("generate --max", ["--max-tokens"]), ("chat --backend cu", ["cuda"]),
               ("synth --shape ti", ["tiny"]), ("eval g", ["golden"]), ("pull q", ["qwen3.6-35b-a3b"]),
               ("help ge", ["generate"]), ("generate --sy", ["--system"]), ("--ver", ["--version"]), ("gen --x", [])]


@pytest.mark.skipif(not shutil.which("bash"), reason="bash is not installed")
def test_bash_completes(installed, tmp_path):
    for typed, offered in COMPLETIONS:
        assert complete(installed, *typed.split()) == offered, typed
    assert complete(installed, "chat", "--backend", "=", "cu") == ["cuda"]  # bash cuts --backend=cu so
    assert "--shape" not in complete(installed, "generate", "--s")
    (tmp_path / "talk.json").write_text("")
    assert complete(installed, "chat", "--load", f"{tmp_path}/ta") == [f"{tmp_path}/talk.json"]


@pytest.mark.skipif(not shutil.which("fish"), reason="fish is not installed")
def test_fish_completes(installed, tmp_path):
    file = f"{installed}{PREFIX}/share/fish/vendor_completions.d/lily.fish"
    (tmp_path / "talk.json").write_text("")
    for typed, offered in [*COMPLETIONS, (f"chat --load {tmp_path}/ta", [f"{tmp_path}/talk.json"]), ("chat t", [])]:
        out = run("fish", "--no-config", "-c", f"source {file}; complete -C 'lily {typed}'", cwd=tmp_path,
                  env={"XDG_DATA_HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)})
        assert [line.split("\t")[0] for line in out.splitlines()] == offered, typed


@pytest.mark.skipif(not shutil.which("zsh"), reason="zsh is not installed")
def test_zsh_completes(installed, tmp_path):
    folder = f"{installed}{PREFIX}/share/zsh/site-functions"
    t = Terminal("-f", "-i", program=("zsh",), env={"HOME": str(tmp_path), "TERM": "dumb"})
    try:
        t.send(f"PROMPT='$ '; unsetopt zle_bracketed_paste prompt_sp prompt_cr list_beep; fpath=({folder} $fpath); "
               'autoload -U compinit; compinit -u -D; echo re""ady\r')
        t.expect("ready\r\n")
        for typed, offered in COMPLETIONS:
            if offered:
                t.send(f"lily {typed}\t")
                t.expect(re.escape(f"lily {typed}{offered[0][len(typed.split()[-1]):]} "))
                t.send("\x15")
    finally:
        t.close()


def test_a_compiler_for_cards_is_found_by_its_path_alone(tmp_path):
    nvcc = tmp_path / "bin/nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text('#!/bin/sh\necho "Cuda compilation tools, release 12.6, V12.6.20"\n')
    nvcc.chmod(0o755)
    done = subprocess.run(["make", "-n", "-p", "help"], cwd=ROOT, capture_output=True, text=True, timeout=60,
                          env={"PATH": f"{nvcc.parent}:/usr/bin:/bin"})
    assert done.returncode == 0, done.stderr
    assert f"\nNVCC := {nvcc}\n" in done.stdout and "\nHAS_CUDA := 1\n" in done.stdout
