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
    (["bench", "--contexts", "x"], ["--contexts", "all", "x"]), (["bench", "--contexts", "0"], ["--contexts", "from 1"]),
    (["bench", "--contexts", "9,"], ["--contexts"]), (["bench", "--contexts", "9,,9"], ["--contexts"]),
    (["bench", "--contexts", ",".join("9" * 33)], ["--contexts", "at most 32"]),
    (["bench", "--contexts", "99999999999999999999"], ["--contexts"]), (["bench", "--contexts", "-1"], ["--contexts"]),
    (["bench", "--contexts", "9 9"], ["--contexts"]), (["bench", "--contexts", ""], ["--contexts", "empty"]),
    (["bench", "--serve", "http://127.0.0.1:1", "--contexts", "x"], ["--contexts"]),
    (["bench", "--serve", "http://127.0.0.1:1", "--concurrency", "0"], ["--concurrency"]),
    *[([verb, *more, "--cpu-mask", mask], ["--cpu-mask", "avx512", mask or "empty"])
      for verb, *more in (["bench"], ["serve"], ["chat"], ["generate", "-p", "hi"], ["inspect"], ["doctor"],
                          ["logits", "--ids", "1", "-o", "x"], ["eval", "ppl", "x"])
      for mask in ("sse", "", "avx512,sse", "generic", "AVX512", ",avx512", "avx5")],
    (["synth", "--shape", "none", "-o", "build/none"], ["--shape", "micro", "none"]),
    (["synth", "--shape", "tin", "-o", "build/none"], ["--shape", "tin"]),
    (["template", "--family", "qwen9", "/nowhere"], ["--family", "qwen3.5-small", "qwen9"]),
    (["generate", "--ids", ","], ["--ids"]), (["generate", "--ids", "1,99999999999"], ["--ids", "99999999999"]),
    (["logits", "--ids", "2147483648", "-o", "x"], ["--ids"]), (["logits", "--ids", "9" * 30, "-o", "x"], ["--ids"]),
    *[([*verb, "--logit-bias", bias], ["--logit-bias", bias]) for verb in (["generate", "-p", "hi"], ["chat"])
      for bias in ("1:", ":1", "1:2:3", "-1:2", "99999999999:1", "1:nan")],
    (["eval", "ppl", "/nowhere", "--ctx", "1"], ["--ctx", "at least 2"]),
    (["serve", "--tls-cert", "x"], ["--tls-cert", "--tls-key"]), (["serve", "--tls-key", "x"], ["--tls-cert", "--tls-key"]),
    (["serve", "--unix", "x", "--tls-cert", "x", "--tls-key", "x"], ["--tls-cert", "--unix"]),
    (["pull", "one", "-o", "build/none"], ["one"]), (["pull", "a/b", "-o", "build/none", "--hub", "x"], ["--hub"]),
])
def test_a_wrong_value_is_status_2_and_names_the_option(lily, args, words):
    done = lily(*args, timeout=30)
    assert done.status == 2 and done.text == "" and done.err.count("\n") == 1, done.err
    for word in words:
        assert word in done.err


@pytest.mark.parametrize("args, words", [
    (["bench", "-m", "synth:micro", "--contexts", "9,9999999"], ["--contexts", "9999999", "the longest is"]),
    (["bench", "-m", "synth:micro", "--cpu-mask", "sm90a", "--backend", "cpu"], ["mask", "sm90a"]),
    (["generate", "-m", "synth:micro", "--ids", "99999999"], ["99999999"]),
])
def test_what_only_this_model_or_backend_refuses_is_status_1(lily, args, words):
    done = lily(*args, timeout=30)
    assert done.status == 1 and done.text == "" and done.err.count("\n") == 1, done.err
    for word in words:
        assert word in done.err


def test_a_wrong_pin_is_named_and_a_right_one_changes_no_answer(lily):
    for verb in (["generate", "-p", "hi"], ["bench"], ["doctor"], ["serve"], ["synth", "--shape", "micro", "-o", "x"]):
        done = lily(*verb, env={"LILY_PIN": "yes"}, timeout=30)
        assert done.status == 2 and "LILY_PIN: expected on, off or auto, found yes" in done.err and done.err.count("\n") == 1
    answers = {lily("generate", "-m", "synth:micro", "-p", "hi", "--temp", 0, "--max-tokens", 8, env={"LILY_PIN": pin}).out
               for pin in ("", "on", "off", "auto")}
    assert len(answers) == 1 and answers.pop()


def test_values_at_the_edge_of_the_right_ones(lily):
    for mask in ("avx512", "avx512,amx", "neon,avx2,"):
        assert lily("inspect", "-m", "synth:micro", "--cpu-mask", mask).status == 0
    done = lily("generate", "-m", "synth:micro", "--ids", " 1, 2,,3 ", "--max-tokens", 1, "--logit-bias", "1:-inf,2:1e3")
    assert done.status == 0, done.err


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
