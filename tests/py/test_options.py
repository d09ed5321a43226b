# SPDX-License-Identifier: Apache-2.0
"""Wrong values on the command line: exit status 2 and one line that names the option; suggestions only where one is near."""
import fcntl
import os

import pytest


@pytest.mark.parametrize("args, words", [
    (["generate", "-p", "hi", "-m", ""], ["--model", "empty"]),
    (["serve", "--unix", ""], ["--unix", "empty"]), (["serve", "--api-keys", ""], ["--api-keys", "empty"]),
    (["serve", "--tls-cert", "", "--tls-key", ""], ["--tls-cert"]), (["serve", "--host", ""], ["--host"]),
    (["serve", "--name="], ["--name"]), (["serve", "--cors", ""], ["--cors"]), (["chat", "--load", ""], ["--load"]),
    (["logits", "--ids", "1", "-o", ""], ["--out"]), (["synth", "--shape", "tiny", "-o", ""], ["--out"]),
    (["generate", "-p", "hi", "--stop", ""], ["--stop"]), (["generate", "-p", "hi", "--backend", "gpu"], ["--backend", "cuda", "gpu"]),
    (["generate", "-p", "hi", "--repetition-penalty", "0"], ["--repetition-penalty", "0.01"]),
    (["generate", "-p", "hi", "--logit-bias", "x"], ["--logit-bias", "ID:X"]),
    (["generate", "--ids", "1,x"], ["--ids", "1,x"]), (["generate", "--ids", ""], ["--ids"]),
    (["generate", "-p", "hi", "--temp", "hot"], ["--temp", "hot"]), (["generate", "-p", "hi", "--temp", "nan"], ["--temp"]),
    (["serve", "--port", "65536"], ["--port", "65535"]), (["serve", "--port", "8080x"], ["--port"]),
])
def test_a_wrong_value_is_status_2_and_names_the_option(lily, args, words):
    done = lily(*args, timeout=30)
    assert done.status == 2 and done.text == "" and done.err.count("\n") == 1, done.err
    for word in words:
        assert word in done.err


def test_an_empty_message_is_a_message(lily):
    assert lily("generate", "-p", "", "--system", "", "--max-tokens", 1).status == 0


@pytest.mark.parametrize("args, near", [
    (["serve", "--prot", "1"], "--port"), (["serve", "--max-queu", "1"], "--max-queue"), (["serve", "--treads", "1"], "--threads"),
    (["generate", "--tempp", "1"], "--temp"), (["gen"], "generate"), (["bnech"], "bench"), (["serv"], "serve"),
    (["serve", "--xyz"], None), (["serve", "--q"], None), (["generate", "--frob"], None), (["x"], None), (["zz"], None), (["frob"], None),
])
def test_a_name_is_suggested_only_when_it_is_near(lily, args, near):
    done = lily(*args)
    assert done.status == 2 and done.err.count("\n") == 1
    assert (f"did you mean {near}?" in done.err) if near else ("did you mean" not in done.err and "--help" in done.err), done.err


def test_two_runs_do_not_write_into_one_folder(lily, tmp_path):
    there = lily("synth", "--shape", "micro", "-o", tmp_path / "a")
    assert there.status == 0, there.err
    before = {p.name: p.read_bytes() for p in (tmp_path / "a").iterdir()}
    fd = os.open(tmp_path / "a", os.O_RDONLY)  # as a run that writes holds it
    fcntl.flock(fd, fcntl.LOCK_EX)
    done = lily("synth", "--shape", "micro", "--seed", 5, "--force", "-o", tmp_path / "a")
    assert done.status == 1 and "another run" in done.err and done.err.count("\n") == 1
    assert {p.name: p.read_bytes() for p in (tmp_path / "a").iterdir()} == before
    os.close(fd)
    assert lily("synth", "--shape", "micro", "--seed", 5, "--force", "-o", tmp_path / "a").status == 0
