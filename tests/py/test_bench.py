# SPDX-License-Identifier: Apache-2.0
"""`lily bench`: what it writes, that it repeats itself, and that a batch does each sequence's own work. No speed is judged."""
import csv
import io
import json
import re
import shlex
import xml.etree.ElementTree as ElementTree

import pytest
from conftest import ROOT

TINY = "synth:tiny,layers=4"
QUICK = ["--rounds", "1", "--steps", "4", "--meter-mb", "16"]
NUMBER = (int, float)
ROW_KEYS = {
    "context": int, "batch": int, "filled": bool, "unstable": bool, "rounds": int, "prefill_bound": str, "decode_bound": str,
    "prefill_bytes": NUMBER, "prefill_flop": NUMBER, "decode_bytes_step": NUMBER, "decode_flop_step": NUMBER,
    "experts_per_layer_step": NUMBER, "experts_counted": bool, "read_gb_s": NUMBER,
    "matrix_tflops": NUMBER, "peak_bytes": int, "peak_over_plan": NUMBER, "ids_digest": str, "seq_digests": list,
    **{f"{phase}_{figure}{end}": NUMBER for phase in ("prefill", "decode") for figure in ("tok_s", "bound_share")
       for end in ("", "_min", "_max")},
    **{f"{phase}_{rate}": NUMBER for phase in ("prefill", "decode") for rate in ("read_gb_s", "matrix_tflops")}}
TOP_KEYS = {
    "machine": dict, "versions": dict, "model": dict, "backend": str, "read_gb_s": NUMBER, "matrix_tflops": NUMBER,
    "matrix_unit": str, "meter_bytes_per_thread": int, "steps": int, "rounds": int, "batch": int, "chunk": int, "seed": int,
    "plan_bytes": int, "results": list, "skipped": list}
STAGES = ["embedding", "gdn in", "gdn", "gdn out", "attention in", "attention", "attention out", "router", "experts up",
          "experts down", "head", "sampling", "between"]


def bench(lily, *args, model=TINY):
    r = lily("bench", "-m", model, *QUICK, "--json", "-", *args)
    assert r.status == 0, r.err
    return json.loads(r.out)


def check_types(value, types):
    assert set(value) == set(types)
    for key, kind in types.items():
        assert isinstance(value[key], kind) and (kind is bool or not isinstance(value[key], bool)), key


def test_json_has_every_key_with_its_type(lily):
    v = bench(lily, "--contexts", "9,70")
    check_types(v, TOP_KEYS)
    assert [r["context"] for r in v["results"]] == [9, 70] and v["skipped"] == []
    assert v["steps"] == 4 and v["rounds"] == 1 and v["batch"] == 1 and v["seed"] == 0
    assert v["meter_bytes_per_thread"] == 16 << 20
    for row in v["results"]:
        check_types(row, ROW_KEYS)
        assert row["filled"] is row["unstable"] is False and row["rounds"] == 1
        for name in ("prefill_tok_s", "decode_tok_s", "prefill_bound_share", "decode_bound_share"):
            assert 0 < row[name + "_min"] <= row[name] <= row[name + "_max"]
        assert row["decode_bound"] in ("bytes", "flop") and row["experts_counted"]
        assert row["experts_per_layer_step"] == 4 and row["seq_digests"] == [row["ids_digest"]]


@pytest.mark.parametrize("batch", [1, 2])
def test_shares_can_be_worked_out_again(lily, batch):
    """A share is the work over the time over the rate that its own phase was held against."""
    v = bench(lily, "--contexts", "9,300", "--batch", batch, "--steps", "20")
    for row in v["results"]:
        for phase, seconds, end in (("prefill", row["context"] * batch / row["prefill_tok_s"], ""),
                                    ("decode", batch / row["decode_tok_s"], "_step")):
            by = {"bytes": row[f"{phase}_bytes{end}"] / (row[f"{phase}_read_gb_s"] * 1e9),
                  "flop": row[f"{phase}_flop{end}"] / (row[f"{phase}_matrix_tflops"] * 1e12)}
            assert row[f"{phase}_bound"] == max(by, key=by.get)
            assert row[f"{phase}_bound_share"] == pytest.approx(max(by.values()) / seconds, rel=0.01)
        assert row["read_gb_s"] == row["decode_read_gb_s"] and row["matrix_tflops"] == row["decode_matrix_tflops"]
        for end in ("read_gb_s", "matrix_tflops"):
            assert all(0 < row[f"{phase}_{end}"] <= v[end] * 1.000001 for phase in ("prefill", "decode"))


def test_medians_lie_between_the_rounds_and_rounds_are_counted(lily):
    v = bench(lily, "--contexts", "16", "--rounds", "2")
    row = v["results"][0]
    assert v["rounds"] == 2 and 2 <= row["rounds"] <= 7
    assert row["rounds"] == 7 or not row["unstable"]
    assert row["decode_tok_s_min"] <= row["decode_tok_s"] <= row["decode_tok_s_max"]


def test_ids_are_the_same_in_every_run_and_with_any_number_of_threads(lily):
    rows = [bench(lily, "--contexts", "16,65", "--threads", n)["results"] for n in (1, 1, 2)]
    digests = [[r["ids_digest"] for r in row] for row in rows]
    assert digests[0] == digests[1] == digests[2] and digests[0][0] != digests[0][1]
    assert bench(lily, "--contexts", "16,65", "--seed", "1")["results"][0]["ids_digest"] != digests[0][0]


@pytest.mark.parametrize("args", [[], ["--fill-above", "100"]], ids=["read", "filled"])
def test_a_batch_decodes_each_sequence_as_it_would_alone(lily, args):
    together = bench(lily, "--contexts", "150", "--batch", "2", *args)["results"][0]
    alone = [bench(lily, "--contexts", "150", "--seed", seed, *args)["results"][0] for seed in (0, 1)]
    assert together["batch"] == 2 and together["filled"] is bool(args)
    assert together["seq_digests"] == [r["ids_digest"] for r in alone]
    assert together["seq_digests"][0] != together["seq_digests"][1]
    # Experts that both chose are read once; the rest of the weights is not read twice either.
    assert 4 <= together["experts_per_layer_step"] <= 8
    assert together["decode_bytes_step"] < 2 * alone[0]["decode_bytes_step"]


def test_filled_rows_say_so_and_have_no_prefill(lily):
    v = bench(lily, "--contexts", "64,600", "--fill-above", "64")
    read, filled = v["results"]
    assert read["filled"] is False and filled["filled"] is True
    for key in ("tok_s", "bound_share"):
        for end in ("", "_min", "_max"):
            assert filled[f"prefill_{key}{end}"] is None and filled[f"decode_{key}{end}"] > 0
    assert all(filled[f"prefill_{key}"] is None for key in ("bound", "bytes", "flop", "read_gb_s", "matrix_tflops"))
    assert read["prefill_bytes"] > 0 and read["prefill_flop"] > 0
    r = lily("bench", "-m", TINY, *QUICK, "--contexts", "600", "--fill-above", "64")
    assert r.status == 0 and r.text.splitlines()[3].endswith("  filled") and "copies of their keys" in r.text


def test_filled_contexts_beyond_8192_by_default(lily):
    row = bench(lily, "--contexts", "8300", model="synth:micro")["results"][0]
    assert row["filled"] is True and row["decode_tok_s"] > 0


def test_c72_profile_gives_time_and_bytes_of_every_stage(lily):
    v = bench(lily, "--contexts", "70", "--profile")
    row = v["results"][0]
    check_types(row, {**ROW_KEYS, "profile": list})
    for phase in ("prefill", "decode"):
        stages = [s for s in row["profile"] if s["phase"] == phase]
        assert [s["stage"] for s in stages] == STAGES
        for s in stages:
            check_types(s, {"phase": str, "stage": str, **dict.fromkeys(
                ("seconds", "time_share", "bytes", "flop", "bound_share"), NUMBER)})
        assert sum(s["time_share"] for s in stages) == pytest.approx(1, abs=1e-6)
    assert sum(s["bytes"] for s in row["profile"] if s["phase"] == "decode") == pytest.approx(row["decode_bytes_step"])
    plain = bench(lily, "--contexts", "70")["results"][0]
    assert plain["ids_digest"] == row["ids_digest"] and plain["decode_bytes_step"] == row["decode_bytes_step"]
    text = lily("bench", "-m", TINY, *QUICK, "--contexts", "70", "--profile").text
    assert all(f"\n  {stage} " in text for stage in STAGES)


def test_profile_of_a_backend_that_times_no_stages(lily):
    args = ["--contexts", "9", "--profile", "--backend", "ref"]
    v = bench(lily, *args)
    assert v["backend"] == "ref" and v["results"][0]["profile"] == []
    assert "does not time them" in lily("bench", "-m", TINY, *QUICK, *args).text


def test_csv_and_picture_hold_the_rows_of_the_json(lily, tmp_path):
    paths = {kind: tmp_path / f"out.{kind}" for kind in ("json", "csv", "svg")}
    r = lily("bench", "-m", TINY, *QUICK, "--contexts", "16,65,600", "--fill-above", "100",
             *(word for kind, path in paths.items() for word in ("--" + kind, path)))
    assert r.status == 0 and " MB/step " in r.text
    v = json.loads(paths["json"].read_text())
    rows = list(csv.DictReader(io.StringIO(paths["csv"].read_text())))
    assert [int(row["context"]) for row in rows] == [16, 65, 600]
    for row, result in zip(rows, v["results"]):
        assert row["ids_digest"] == result["ids_digest"] and row["model"] == TINY
        assert float(row["decode_tok_s"]) == pytest.approx(result["decode_tok_s"])
        assert (row["prefill_tok_s"] == "") == result["filled"] == (row["filled"] == "true")
    root = ElementTree.parse(paths["svg"]).getroot()
    space = {"s": "http://www.w3.org/2000/svg"}
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    texts = ["".join(t.itertext()) for t in root.findall("s:text", space)]
    assert {TINY, "prefill", "decode", "tokens a second", "share of the bound"} <= set(texts)
    marks = root.findall("s:circle", space)
    assert len(marks) == 2 * (2 + 3)
    assert all(0 < float(m.get("cx")) < 760 for m in marks)


def test_c76_a_result_is_held_against_an_earlier_one(lily, tmp_path):
    path = tmp_path / "last.json"
    v = bench(lily, "--contexts", "16")
    row = v["results"][0]
    for low, high, status, verdict in ((0, 1e9, 0, "as before"), (1e8, 1e9, 1, "slower"), (0, 1e-9, 0, "faster")):
        row.update({f"{phase}_bound_share{end}": value for phase in ("prefill", "decode")
                    for end, value in (("", low), ("_min", low), ("_max", high))})
        path.write_text(json.dumps(v))
        r = lily("bench", "-m", TINY, *QUICK, "--contexts", "16,20", "--compare", path)
        assert r.status == status and "of the bound" in r.text
        lines = [line for line in r.text.splitlines() if line.endswith(": " + verdict)]
        assert [line.split(":")[0] for line in lines] == ["prefill at     16", "decode  at     16"], r.text
        assert ("2 figures are slower than in" in r.err) == (status == 1)
    path.write_text("{")
    r = lily("bench", "-m", TINY, *QUICK, "--contexts", "16", "--compare", path)
    assert r.status == 1 and str(path) in r.err and "round" not in r.err


@pytest.mark.parametrize("change, args, words", [
    (("model", "spec", "x"), [], "model: spec differs"), (("model", "layers", 8), [], "model: layers differs"),
    (("machine", "threads", 3), [], "machine: threads differs"), (("machine", "threads", 1), ["--backend", "ref"], "backend differs"),
    (None, ["--contexts", "17"], "no row has the context, batch and filling of one of the earlier result"),
    (None, ["--contexts", "all", "--ctx", "1100"], "no row"), (None, ["--batch", "2"], "no row"),
    (None, ["--contexts", "130", "--fill-above", "16"], "no row"), ("all", [], "model: spec differs")])
def test_what_cannot_be_compared_is_refused_before_anything_is_loaded(lily, tmp_path, change, args, words):
    rows = [{"context": n, "batch": 1, "filled": False} for n in (16, 130)]
    v = {"model": {"spec": TINY, "layers": 4}, "backend": "cpu", "machine": {"threads": 1}, "results": rows}
    if change == "all":
        v = {}
    elif change:
        v[change[0]][change[1]] = change[2]
    path = tmp_path / "last.json"
    path.write_text(json.dumps(v))
    r = lily("bench", "-m", TINY, *QUICK, "--contexts", "16", "--threads", "1", "--compare", path, *args)
    assert r.status == 1 and words in r.err and "loaded" not in r.err and "round" not in r.err and r.out == b""


def test_an_unstable_row_is_not_judged_and_that_is_said(lily, tmp_path):
    path = tmp_path / "last.json"
    v = bench(lily, "--contexts", "16")
    v["results"][0].update({f"decode_bound_share{end}": 1e9 for end in ("", "_min", "_max")}, unstable=True)
    path.write_text(json.dumps(v))
    r = lily("bench", "-m", TINY, *QUICK, "--contexts", "16", "--compare", path)
    assert r.status == 0 and "\n2 unstable figures are not judged: their rounds disagree, now or before\n" in r.text


def test_a_context_that_does_not_fit_is_left_out_by_name(lily):
    with open("/proc/meminfo") as f:
        available = int(next(line for line in f if line.startswith("MemAvailable")).split()[1]) << 10
    if available > 40e9:
        pytest.skip("this machine holds the context")
    wide = ["bench", "-m", "synth:micro,layers=40", *QUICK, "--steps", "1", "--batch", "16"]
    r = lily(*wide, "--contexts", "8,260000", "--json", "-")
    assert r.status == 0, r.err
    v = json.loads(r.out)
    assert [row["context"] for row in v["results"]] == [8] and [s["context"] for s in v["skipped"]] == [260000]
    assert "needs" in v["skipped"][0]["reason"] and "context 260000 is left out: needs" in r.err
    r = lily(*wide, "--contexts", "260000")
    assert r.status == 1 and "no context fits: needs" in r.err


def test_all_contexts_end_where_ctx_or_the_model_does(lily):
    r = lily("bench", "-m", "synth:micro", *QUICK, "--contexts", "all", "--ctx", "1100", "--json", "-")
    assert r.status == 0, r.err
    v = json.loads(r.out)
    assert [row["context"] for row in v["results"]] == [256, 1024]
    assert [s["context"] for s in v["skipped"]] == [4096, 8192, 16384, 32768, 65536, 131072]
    r = lily("bench", "-m", "synth:micro", *QUICK, "--contexts", "all", "--ctx", "100")
    assert r.status == 1 and "the longest is 95" in r.err


@pytest.mark.parametrize("args, words, status", [
    (["--contexts", "2000", "--ctx", "1000"], "the longest is 995, found 2000", 1),
    (["--contexts", "al"], "--contexts", 2), (["--contexts", "5,x"], "--contexts", 2),
    (["--batch", "0"], "--batch", 2), (["--batch", "65"], "--batch", 2), (["--meter-mb", "1"], "--meter-mb", 2),
    (["--csv", "/nowhere/at/all.csv"], "/nowhere/at/all.csv", 1), (["--svg", "/"], "/", 1),
    (["--csv", "-"], "--csv: expected a file, found -", 1), (["--svg", "-"], "--svg: expected a file, found -", 1),
    (["--ctx", "1"], "--ctx: expected room for a token and two steps, found 1", 1),
    (["--steps", "100", "--ctx", "64"], "--steps: expected at most 62", 1),
    (["--json", "/tmp/one", "--svg", "/tmp/one"], "two results would go to /tmp/one", 1),
])
def test_bad_options_are_refused_before_anything_is_measured(lily, args, words, status):
    r = lily("bench", "-m", "synth:micro", "--contexts", "16", *QUICK, *args)
    assert r.status == status and words in r.err and r.out == b"" and "round" not in r.err


def test_masked_columns_are_measured_too(lily):
    v = bench(lily, "--contexts", "9", "--cpu-mask", "avx512")
    assert "matmul generic" in v["machine"]["device"]


DOCUMENT = (ROOT / "docs/performance.md").read_text()


def test_every_key_is_in_the_document():
    named = set(re.findall(r"`(\w+)`", DOCUMENT))
    ends = ("_min", "_max")
    assert {key.removesuffix("_min").removesuffix("_max") for key in (*ROW_KEYS, *TOP_KEYS)} <= named
    assert all(f"{key}_min" in ROW_KEYS and f"`{end}`" in DOCUMENT for key in ("prefill_tok_s", "decode_bound_share") for end in ends[1:])


def test_commands_shown_in_the_document_run(lily, tmp_path):
    shown = [shlex.split(line.split("#")[0]) for line in DOCUMENT.splitlines() if line.startswith("    build/lily bench")]
    assert len(shown) >= 6
    for program, verb, *args in shown:
        args = [re.sub("^synth:qwen3.6-35b-a3b", "synth:micro", word) for word in args]
        args = [tmp_path / word if word.startswith("out.") else "cpu" if word == "cuda" else word for word in args]
        model = [] if "-m" in args else ["-m", "synth:micro"]
        r = lily(verb, *model, *args, *QUICK, "--steps", "1", "--fill-above", "256")
        assert r.status == 0 or "--compare" in args and "are slower than in" in r.err, r.err
        assert " MB/step " in r.text
    assert {p.name for p in tmp_path.iterdir()} == {"out.json", "out.csv", "out.svg"}


def test_options_of_the_card_s_benches_shown_in_the_document_exist():
    shown = [shlex.split(line.split("#")[0]) for line in DOCUMENT.splitlines() if line.startswith("    build/bench_cuda")]
    assert len(shown) >= 4
    for program, *args in shown:
        source = (ROOT / f"bench/{program.removeprefix('build/')}.c").read_text()
        assert all(f'"{option}"' in source for option in args)
