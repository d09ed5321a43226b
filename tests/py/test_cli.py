# SPDX-License-Identifier: Apache-2.0
"""The command line as a user meets it: results on stdout, one-line errors, exit statuses."""
import json
import math
import os
import re
import shutil

import pytest

from conftest import LILY, ORACLE, ROOT, read_safetensors

VERBS = ["generate", "chat", "serve", "bench", "eval", "logits", "tokenize", "detokenize", "template", "parse", "inspect", "synth",
         "doctor"]
TINY = "synth:tiny,layers=4"


def assert_refused(result, *words, status=1):
    assert result.status == status, result.err
    assert result.err.count("\n") == 1, result.err
    assert result.out == b""
    for w in words:
        assert w in result.err, result.err


# ---- usage ----

def test_help_lists_every_verb_and_each_verb_has_its_own(lily):
    top = lily("--help")
    assert top.status == 0
    for verb in VERBS:
        assert f"  {verb} " in top.text
        own = lily(verb, "--help")
        assert own.status == 0 and own.text.startswith(f"usage: lily {verb}")
        assert lily("help", verb).text == own.text


def test_version_names_commit_and_backends(lily):
    r = lily("--version")
    assert r.status == 0
    assert re.search(r"^lily \d+\.\d+\.\d+ \(commit \w+\)\nbackends: .*ref.*cpu", r.text)


@pytest.mark.parametrize("args, near", [
    (["genrate"], "generate"), (["generate", "--max-tokns", "3"], "--max-tokens"),
    (["bench", "--context", "3"], "--contexts"), (["generate", "--temperature", "1"], "--temp"),
])
def test_a_wrong_name_is_refused_with_the_nearest_right_one(lily, args, near):
    r = lily(*args)
    assert r.status == 2 and near in r.err and r.err.count("\n") == 1


@pytest.mark.parametrize("args", [
    ["generate"], ["generate", "-p", "a", "--ids", "1"], ["generate", "-p"], ["generate", "-p", "a", "--temp", "x"],
    ["generate", "-p", "a", "--top-p", "1.5"], ["generate", "-p", "a", "--max-tokens", "0"], ["logits", "--ids", "1"],
    ["eval", "golden"], ["eval", "magic", "x"], ["synth"], ["generate", "--raw=1", "-p", "a"],
    ["tokenize", "a", "b"], [],
])
def test_wrong_usage_exits_with_2(lily, args):
    r = lily(*args)
    assert r.status == 2 and r.out == b"" and r.err


# ---- a run ----

def test_generate_is_deterministic_and_streams_to_stdout(lily):
    args = ["generate", "-m", TINY, "-p", "hello", "--no-think", "--max-tokens", "8", "--seed", "7"]
    a, b = lily(*args), lily(*args)
    assert a.status == 0 and a.out == b.out and a.out
    assert re.search(r"\d+ prompt tokens in .* 8 new tokens .* finish: length", a.err)
    c = lily(*args[:-1], "8")
    assert c.out != a.out


def test_generate_json_counts_and_ids(lily):
    r = lily("generate", "-m", TINY, "--ids", "1,2,3", "--max-tokens", "5", "--temp", "0", "--json", "--ignore-eos")
    v = json.loads(r.text)
    assert v["prompt_tokens"] == 3 and v["completion_tokens"] == 5 and len(v["ids"]) == 5
    assert v["finish_reason"] == "length"


def test_C6_prompts_shorter_than_the_convolution_continue_like_the_reference(lily):
    for m in ("tiny-a", "tiny-b"):
        ref = json.loads((ORACLE / m / "reference/reference.json").read_text())
        greedy = read_safetensors(ORACLE / m / "reference/greedy.safetensors")
        logits = read_safetensors(ORACLE / m / "reference/logits.safetensors")
        assert ref
        for n in (1, 5):
            prompt = ",".join(str(i) for i in logits[f"prompt.{n}"][1])
            wanted, margin = greedy[f"greedy.{n}.ids"][1], greedy[f"greedy.{n}.margin"][1]
            upto = next((i for i, x in enumerate(margin) if x < 0.001), len(wanted))
            path = ROOT / f"build/test-{m}-{n}.safetensors"
            lily("logits", "-m", ORACLE / m, "--backend", "ref", "--ids", prompt, "-o", path)
            values = read_safetensors(path)["logits"]
            assert values[0] == logits[f"logits.{n}"][0]
            assert max(abs(a - b) for a, b in zip(values[1], logits[f"logits.{n}"][1])) < 4e-4
            path.unlink()
            # The tiny checkpoints have no tokenizer: ids in, logits out, ids by argmax.
            ids = list(logits[f"prompt.{n}"][1])
            for i in range(min(upto, 4)):
                lily("logits", "-m", ORACLE / m, "--backend", "ref", "--ids", ",".join(map(str, ids)), "--last", "-o",
                     path)
                row = read_safetensors(path)["logits"][1]
                best = max(range(len(row)), key=lambda j: (row[j], -j))
                assert best == wanted[i]
                ids.append(best)
                path.unlink()


@pytest.mark.parametrize("backend", ["ref", "ref64", "cpu"])
@pytest.mark.parametrize("model", ["tiny-a", "tiny-b"])
def test_logits_of_the_oracle_inside_its_tolerance(lily, tmp_path, model, backend):
    logits = read_safetensors(ORACLE / model / "reference/logits.safetensors")
    layers = read_safetensors(ORACLE / model / "reference/layers.safetensors")
    for m in (5, 65):
        out = tmp_path / "out.safetensors"
        r = lily("logits", "-m", ORACLE / model, "--backend", backend, "--taps", "-o", out, "--ids",
                 ",".join(str(i) for i in logits[f"prompt.{m}"][1]))
        assert r.status == 0, r.err
        mine, ref = read_safetensors(out), logits[f"logits.{m}"][1]
        mean = sum(ref) / len(ref)
        deviation = math.sqrt(sum((x - mean) ** 2 for x in ref) / len(ref))
        rms = math.sqrt(sum((a - b) ** 2 for a, b in zip(mine["logits"][1], ref)) / len(ref)) / deviation
        # f32 implementations differ by 1.7e-6 at most, bf16 ones by 0.036 and 0.028 (the oracle's README)
        assert rms < (0.025 if backend == "cpu" else 1e-5), rms
        if m == 5:
            for name, (shape, values) in layers.items():
                if re.fullmatch(r"layer\.\d+\.out", name):
                    got_shape, got = mine[name[:-4]]
                    assert got_shape == shape
                    size = math.sqrt(sum(x * x for x in values))
                    off = math.sqrt(sum((a - b) ** 2 for a, b in zip(got, values))) / size
                    assert off < (0.035 if backend == "cpu" else 1e-5), (name, off)


def test_logits_last_is_the_last_row(lily, tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    lily("logits", "-m", ORACLE / "tiny-a", "--ids", "1,2,3,4,5", "-o", a)
    lily("logits", "-m", ORACLE / "tiny-a", "--ids", "1,2,3,4,5", "-o", b, "--last")
    whole, last = read_safetensors(a)["logits"], read_safetensors(b)["logits"]
    assert last[0] == [1, 512] and list(last[1]) == list(whole[1][-512:])


def test_text_verbs_round_trip(lily):
    text = "Grüße, 世界 <|im_start|> 🙂\n"
    ids = lily("tokenize", "-m", TINY, "--json", stdin=text.encode())
    assert ids.status == 0
    back = lily("detokenize", "-m", TINY, ",".join(map(str, json.loads(ids.text))))
    assert back.text == text
    plain = json.loads(lily("tokenize", "-m", TINY, "--json", "--plain", text).text)
    assert len(plain) > len(json.loads(ids.text))


def test_template_and_parse(lily, tmp_path):
    messages = tmp_path / "m.json"
    messages.write_text(json.dumps([{"role": "user", "content": "hi"}]))
    r = lily("template", messages, "--no-think")
    assert r.text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    tools = tmp_path / "t.json"
    tools.write_text(json.dumps([{"type": "function", "function": {"name": "ls", "parameters": {}}}]))
    text = b"Let me look.\n<tool_call>\n<function=ls>\n</function>\n</tool_call>"
    whole = lily("parse", "--tools", tools, stdin=text)
    v = json.loads(whole.text)
    assert v["content"] == "Let me look." and v["tool_calls"][0]["function"]["name"] == "ls"
    for n in (1, 2, 5):
        assert lily("parse", "--tools", tools, "--split", n, stdin=text).text == whole.text
        events = [json.loads(line) for line in
                  lily("parse", "--tools", tools, "--split", n, "--events", stdin=text).text.splitlines()]
        assert "".join(e.get("text", "") for e in events if e["event"] == "content") == "Let me look."
        assert [e["event"] for e in events if e["event"] in ("call_begin", "call_end")] == ["call_begin", "call_end"]


def test_bench_prints_speed_beside_the_bound_of_the_same_run(lily, tmp_path):
    out = tmp_path / "bench.json"
    r = lily("bench", "-m", TINY, "--contexts", "16,65", "--steps", "2", "--rounds", "1", "--meter-mb", "16", "--json", out)
    assert r.status == 0, r.err
    v = json.loads(out.read_text())
    assert v["read_gb_s"] > 0 and v["matrix_tflops"] > 0 and [x["context"] for x in v["results"]] == [16, 65]
    for row in v["results"]:
        for key in ("prefill_tok_s", "decode_tok_s", "prefill_bound_share", "decode_bound_share", "peak_bytes"):
            assert row[key] > 0
        assert row["decode_tok_s_min"] <= row["decode_tok_s"] <= row["decode_tok_s_max"]


def test_doctor_reports_the_machine(lily):
    v = json.loads(lily("doctor", "--json").text)
    assert v["backends"]["ref"]["works"] and v["backends"]["cpu"]["works"]
    assert v["memory_bytes"] > 0 and v["read_gb_s"] > 0 and v["read_one_gb_s"] > 0 and v["full_model"]["plan_bytes"] > 19e9
    assert v["cpus"] >= v["threads"] >= 1 and v["nodes"] >= 1 and v["load"] >= 0
    assert v["read_gb_s_min"] <= v["read_gb_s"] <= v["read_gb_s_max"]
    chosen = v["full_model"]["backend"]
    assert chosen == ("cuda" if v["backends"]["cuda"]["works"] else "cpu") and (v["card"] is None) == (chosen == "cpu")
    text = lily("doctor").text
    assert re.search(rf"^auto       {chosen} is what runs", text, flags=re.M)
    built = "cuda" in lily("--version").text
    assert built or v["backends"]["cuda"]["text"] == "not built in" and "missed" not in v
    if built and chosen == "cpu":
        assert v["missed"] == "cuda: " + v["backends"]["cuda"]["text"] and v["missed"] in text


def test_doctor_says_which_columns_there_are_and_why_not(lily):
    v = json.loads(lily("doctor", "--json").text)
    families = {f"{f} {name}" for name, c in v["columns"].items() for f in c["families"]}
    line = v["backends"]["cpu"]["text"]  # of the device that it opened: "cpu: 2 threads, matmul avx512, ..."
    assert len(families) == 4 and all(f in line for f in families), (families, line)
    flags = set(re.search(r"^(?:flags|Features)\s*: (.*)", open("/proc/cpuinfo").read(), flags=re.M)[1].split())
    for name, c in v["columns"].items():
        assert set(c) == {"state", "families", "why"} and c["state"] in ("runs", "idle", "missing")
        assert (c["state"] == "runs") == bool(c["families"]) and (c["state"] == "missing") == bool(c["why"])
        if lacking := re.fullmatch("this CPU lacks (.+)", c["why"]):
            assert not flags & set(lacking[1].split())
    assert v["columns"]["generic"]["state"] in ("runs", "idle")
    if v["columns"].get("avx512", {}).get("state") == "runs":
        masked = json.loads(lily("doctor", "--json", "--cpu-mask", "avx512,amx").text)
        assert v["plain_c"] is None and masked["plain_c"]["decode_gb_s"] > 0 and masked["plain_c"]["prefill_tflops"] > 0
        assert masked["columns"]["avx512"] == {"state": "masked", "families": [], "why": "by --cpu-mask"}
        assert masked["columns"]["generic"]["families"] == ["matmul", "attn", "recur", "elem"]
        assert masked["full_model"]["backend"] != "cpu" or any("--cpu-mask leaves plain C" in a for a in masked["advice"])
        if (full := masked["full_model"])["backend"] == "cpu":
            assert full["decode_share"] is None and full["prefill_share"] is None
            assert 0 < full["decode_expected_tok_s_min"] <= full["decode_expected_tok_s"] <= full["decode_expected_tok_s_max"]
            assert full["decode_expected_tok_s_max"] * full["decode_bytes"] <= masked["plain_c"]["decode_gb_s"] * 1e9
            assert 0 < full["prefill_expected_tok_s"] * full["prefill_flop"] <= masked["plain_c"]["prefill_tflops"] * 1e12


def test_doctor_fails_where_a_run_would_fail(lily):
    mask = "avx512,sm90a"  # one of a processor's columns, one of a card's: no backend has both
    run = lily("generate", "-m", TINY, "--ids", "1", "--max-tokens", 1, "--cpu-mask", mask)
    for doctor in (lily("doctor", "--cpu-mask", mask), lily("doctor", "--cpu-mask", mask, "--json")):
        assert run.status == doctor.status == 1
        assert doctor.err.replace("lily doctor: ", "") == run.err.replace("lily generate: ", "") and "mask: expected" in run.err
        if doctor.text[0] != "{":
            why = doctor.err.removeprefix("lily doctor: ").strip()  # with a card's backend its reason follows
            assert "what would run, and it does not: " + why in doctor.text and "to expect" not in doctor.text
            continue
        full = json.loads(doctor.text)["full_model"]
        assert full["decode_expected_tok_s"] is None and full["prefill_expected_tok_s"] is None


def test_doctor_s_lines_say_what_its_figures_say(lily):
    text = lily("doctor").text
    need, weights, context, verdict, free = re.search(
        r"^Qwen3\.6-35B-A3B, 4 bit, on \w+: needs ([\d.]+) GB \(weights ([\d.]+)\) with a context of (\d+) tokens: (fits into|does not fit into) "
        r"the ([\d.]+) GB that are free$", text, flags=re.M).groups()
    assert (float(need) <= float(free) + 0.05) == (verdict == "fits into") or abs(float(need) - float(free)) <= 0.1
    assert 19 < float(weights) < float(need) and int(context) % 64 == 0
    # docs/performance.md: 1.80 GB a decoded token at 256, 4.87 GFLOP and 0.11 for the state a prefilled one
    decode, size, prefill, flop = map(float, re.search(
        r"^its bounds there: ([\d.]+) tokens a second in decode behind 256 tokens \(([\d.]+) GB of memory each\), "
        r"(\d+) in prefill without attention and head \(([\d.]+) GFLOP each\)$", text, flags=re.M).groups())
    assert size == 1.80 and 4.3 < flop < 5.0
    if not re.search("^card ", text, flags=re.M):
        least, most, reads = map(float, re.search(
            r"^reads +([\d.]+) \.\. ([\d.]+) GB/s with all threads \(median ([\d.]+)\), [\d.]+ with one$", text, flags=re.M).groups())
        assert least <= reads <= most
        products = float(re.search(r"^products +([\d.]+) TFLOP/s", text, flags=re.M)[1])
        assert decode == pytest.approx(reads / size, abs=0.2) and prefill == pytest.approx(products * 1e3 / flop, rel=0.05, abs=1)
    if expected := re.search(
            r"^to expect: (?:([\d.]+) \.\. )?([\d.]+) in decode, (\d+) in prefill \(measured elsewhere: (\d+)% and (\d+)% of these bounds\)$",
            text, flags=re.M):
        low, high, p, d_share, p_share = (float(x or expected[2]) for x in expected.groups())
        assert low - 0.2 <= decode * d_share / 100 <= high + 0.2 and p == pytest.approx(prefill * p_share / 100, abs=2)


def test_eval_golden_reads_the_recorded_files_and_names_what_does_not_fit(lily, tmp_path):
    for name in ("chat", "long", "raw"):
        r = lily("eval", "golden", ROOT / f"tests/data/goldens/golden_35b_{name}.json", "-m", TINY)
        assert_refused(r, "beyond this model's vocabulary")
    own = tmp_path / "own.json"
    made = json.loads(lily("generate", "-m", TINY, "--ids", "5,6,7", "--temp", "0", "--max-tokens", "6", "--json",
                           "--ignore-eos").text)["ids"]
    own.write_text(json.dumps({"prompt_token_ids": [5, 6, 7],
                               "steps": [{"chosen": i, "topk": [[i, -1.0]]} for i in made]}))
    v = json.loads(lily("eval", "golden", own, "-m", TINY, "--json").text)
    assert v["steps"] == 6 and v["chosen_agreement"] == 1 and v["first_disagreement"] == -1
    assert v["logprob_mean_abs_diff"] > 0.1  # the recorded -1 was made up
    assert lily("eval", "golden", own, "-m", TINY, "--max-diff", "100").status == 0
    r = lily("eval", "golden", own, "-m", TINY, "--max-diff", "0.1")
    assert r.status == 1 and "expected at most 0.1" in r.err and "log-probability difference" in r.text


def test_eval_ppl_agrees_with_the_reference(lily, tmp_path):
    for model in ("tiny-a", "tiny-b"):
        logits = read_safetensors(ORACLE / model / "reference/logits.safetensors")
        nll = read_safetensors(ORACLE / model / "reference/greedy.safetensors")["nll.517"][1]
        ids = tmp_path / "ids.json"
        ids.write_text(json.dumps(list(logits["prompt.517"][1])))
        for backend, bound in (("ref", 1e-5), ("cpu", 0.05)):
            v = json.loads(lily("eval", "ppl", ids, "-m", ORACLE / model, "--backend", backend, "--json").text)
            assert v["tokens"] == 516
            assert abs(v["mean_nll"] - sum(nll) / len(nll)) < bound


# ---- bad input ----

@pytest.mark.parametrize("args, words", [
    (["generate", "-m", "/nowhere", "-p", "a"], ["/nowhere"]),
    (["generate", "-m", "synth:none", "-p", "a"], ["none"]),
    (["generate", "-m", TINY, "--ids", "99999999"], ["99999999"]),
    (["generate", "-m", TINY, "-p", "a", "--backend", "metal"], ["metal"]),
    (["generate", "-m", TINY, "-p", "a" * 200, "--ctx", "64"], ["context holds 64"]),
    (["logits", "-m", TINY, "--ids", "1", "-o", "/nowhere/x"], ["/nowhere/x"]),
    (["eval", "golden", "/nowhere", "-m", TINY], ["/nowhere"]),
    (["detokenize", "-m", TINY, "99999999"], ["99999999"]),
])
def test_a_bad_value_is_one_line_that_names_it(lily, args, words):
    r = lily(*args)
    assert_refused(r, *words)


def test_invalid_utf8_in_a_prompt_is_refused(lily):
    assert_refused(lily("tokenize", "-m", TINY, stdin=b"ab\xff"), "UTF-8")
    assert_refused(lily("generate", "-m", TINY, "-p", "-", stdin=b"ab\xff"), "UTF-8")


def test_a_closed_pipe_and_a_full_disk_end_the_run_with_1(lily):
    if not os.path.exists("/dev/full"):
        pytest.skip("this system has no /dev/full")
    import subprocess
    with open("/dev/full", "wb") as full:
        done = subprocess.run([LILY, "tokenize", "-m", TINY, "abc"], stdout=full, stderr=subprocess.PIPE, cwd=ROOT)
    assert done.returncode == 1 and b"No space left" in done.stderr


def test_a_folder_without_read_permission(lily, tmp_path):
    model = tmp_path / "m"
    shutil.copytree(ORACLE / "tiny-a", model)
    (model / "config.json").chmod(0)
    if os.access(model / "config.json", os.R_OK):
        pytest.skip("the superuser reads everything")
    assert_refused(lily("inspect", "-m", model), "config.json", "ermission")


def test_synth_writes_a_folder_that_opens(lily, tmp_path):
    out = tmp_path / "model"
    r = lily("synth", "--shape", "tiny", "--layers", "4", "--seed", "3", "-o", out, "--json")
    assert r.status == 0, r.err
    v = json.loads(r.text)
    assert v["layers"] == 4 and v["experts_used_least"] > 0
    again = lily("synth", "--shape", "tiny", "-o", out)
    assert again.status == 1 and str(out) in again.err
    made = lily("generate", "-m", out, "-p", "hello", "--raw", "--max-tokens", "6", "--temp", "0")
    memory = lily("generate", "-m", "synth:tiny,layers=4,seed=3", "-p", "hello", "--raw", "--max-tokens", "6", "--temp", "0")
    assert made.status == 0 and made.out == memory.out


def test_inspect_reports_without_loading(lily):
    v = json.loads(lily("inspect", "-m", ORACLE / "tiny-a", "--json").text)
    text = json.dumps(v)
    assert "192" in text and "512" in text
    assert lily("inspect", "-m", ORACLE / "tiny-b").status == 0
