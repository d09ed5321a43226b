# SPDX-License-Identifier: Apache-2.0
"""bench/compare: the file that it writes, its arithmetic, and how it refuses. No engine is built or run here."""
import json
import math
import pathlib
import random
import shlex
import statistics
import struct
import subprocess
import sys
import tarfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
COMPARE = ROOT / "bench/compare"
sys.path.insert(0, str(COMPARE))
import compare  # noqa: E402
import figures  # noqa: E402
import gguf_write  # noqa: E402
import peers  # noqa: E402

TINY = gguf_write.Shape(layers=4, hidden=64, vocab=96, experts=8, top_k=2, inner=32, q_heads=2, kv_heads=1, head=32, rotary=8,
                        gdn_key_heads=1, gdn_value_heads=2, gdn_head=32)


class Reader:
    """A GGUF file, read by the format's description."""

    def __init__(self, path):
        self.raw, self.at = pathlib.Path(path).read_bytes(), 0
        assert self.raw[:4] == b"GGUF"
        self.at = 4
        self.version, n_tensors, n_keys = self.take("<IQQ")
        self.keys = {}
        for _ in range(n_keys):
            name = self.text()
            self.keys[name] = self.value(*self.take("<I"))
        self.tensors = {}
        for _ in range(n_tensors):
            name = self.text()
            (n_dims,) = self.take("<I")
            dims = self.take(f"<{n_dims}Q")
            self.tensors[name] = (dims, *self.take("<IQ"))
        alignment = self.keys.get("general.alignment", 32)
        self.data = -(-self.at // alignment) * alignment

    def take(self, fmt):
        out = struct.unpack_from(fmt, self.raw, self.at)
        self.at += struct.calcsize(fmt)
        return out

    def text(self):
        (n,) = self.take("<Q")
        self.at += n
        return self.raw[self.at - n:self.at].decode()

    def value(self, kind):
        if kind == 8:
            return self.text()
        if kind == 9:
            inner, n = self.take("<IQ")
            return [self.value(inner) for _ in range(n)]
        return self.take({4: "<I", 5: "<i", 6: "<f"}[kind])[0]

    def size(self, name):
        dims, kind, _ = self.tensors[name]
        n = math.prod(dims)
        return {0: 4 * n, 2: n // 32 * 18}[kind]

    def numbers(self, name):
        dims, kind, offset = self.tensors[name]
        raw = self.raw[self.data + offset:][:self.size(name)]
        if kind == 0:
            return list(struct.unpack(f"<{len(raw) // 4}f", raw))
        out = []
        for i in range(0, len(raw), 18):
            (scale,) = struct.unpack_from("<e", raw, i)
            codes = [b & 15 for b in raw[i + 2:i + 18]] + [b >> 4 for b in raw[i + 2:i + 18]]
            out += [scale * (c - 8) for c in codes]
        return out


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    size = gguf_write.write(path, TINY, seed=3, processes=2)
    assert path.stat().st_size == size and not path.with_name("tiny.gguf.part").exists()
    return Reader(path)


def test_gguf_header_and_keys(tiny):
    assert tiny.version == 3
    k = tiny.keys
    assert k["general.architecture"] == "qwen35moe" and k["tokenizer.ggml.model"] == "none"
    assert k["qwen35moe.block_count"] == 4 and k["qwen35moe.embedding_length"] == 64 and k["qwen35moe.vocab_size"] == 96
    assert k["qwen35moe.expert_count"] == 8 and k["qwen35moe.expert_used_count"] == 2
    assert k["qwen35moe.attention.head_count"] == 2 and k["qwen35moe.attention.head_count_kv"] == 1
    assert k["qwen35moe.ssm.inner_size"] == 64 and k["qwen35moe.ssm.time_step_rank"] == 2
    assert k["qwen35moe.rope.freq_base"] == 1e7
    assert abs(k["qwen35moe.attention.layer_norm_rms_epsilon"] - 1e-6) < 1e-12
    assert sum(k["qwen35moe.rope.dimension_sections"]) == TINY.rotary // 2


def test_gguf_rope_sections_of_the_published_shape():
    sections = {name: value for name, _, value in gguf_write.keys(gguf_write.Shape())}["qwen35moe.rope.dimension_sections"]
    assert sections == [11, 11, 10, 0]


def test_gguf_tensors_lie_aligned_without_overlap_to_the_end(tiny):
    end = 0
    for name, (dims, kind, offset) in tiny.tensors.items():
        assert offset % 32 == 0 and end <= offset < end + 32, name
        end = offset + tiny.size(name)
    assert end <= len(tiny.raw) - tiny.data < end + 32


def test_gguf_shapes(tiny):
    dims = {name: t[0] for name, t in tiny.tensors.items()}
    kinds = {name: t[1] for name, t in tiny.tensors.items()}
    assert dims["token_embd.weight"] == dims["output.weight"] == (64, 96)
    assert dims["blk.0.ffn_gate_exps.weight"] == (64, 32, 8) and dims["blk.3.ffn_down_exps.weight"] == (32, 64, 8)
    assert dims["blk.0.attn_qkv.weight"] == (64, 128) and dims["blk.3.attn_q.weight"] == (64, 128)
    assert dims["blk.0.ssm_conv1d.weight"] == (4, 128) and dims["blk.0.ssm_out.weight"] == (64, 64)
    assert "blk.3.attn_qkv.weight" not in dims and "blk.0.attn_q.weight" not in dims
    assert kinds["blk.0.ffn_gate_inp.weight"] == 0 and kinds["blk.0.ffn_gate_inp_shexp.weight"] == 0
    assert all(kind == (2 if len(dims[name]) > 1 and not name.endswith(("conv1d.weight", "ffn_gate_inp.weight")) else 0)
               for name, kind in kinds.items())


def test_gguf_values_have_the_spread_that_even_routing_needs(tiny):
    def deviation(name):
        values = tiny.numbers(name)
        assert all(math.isfinite(v) for v in values)
        return statistics.fmean(values), statistics.pstdev(values)
    mean, dev = deviation("token_embd.weight")
    assert abs(dev / gguf_write.EMBED_STD - 1) < 0.1 and abs(mean) < 0.1 * dev
    for name in ("output.weight", "blk.0.ffn_up_exps.weight", "blk.3.attn_q.weight"):
        mean, dev = deviation(name)
        assert abs(dev * 8 - 1) < 0.1 and abs(mean) < 0.1 * dev, name  # 1 / sqrt(64)
    mean, dev = deviation("blk.1.ffn_gate_inp.weight")
    assert abs(dev * 8 - 1) < 0.2 and abs(mean) < 0.25 * dev
    assert all(-8.1 < v < 0 for v in tiny.numbers("blk.0.ssm_a"))
    assert all(0.8 < v < 1.2 for v in tiny.numbers("output_norm.weight"))


def test_gguf_routing_of_random_rows_is_even(tiny):
    """Tokens whose residual is their embedding spread over all experts."""
    embedding, router = tiny.numbers("token_embd.weight"), tiny.numbers("blk.0.ffn_gate_inp.weight")
    used = [0] * 8
    for t in range(96):
        row = embedding[64 * t:64 * (t + 1)]
        scale = 1 / math.sqrt(sum(v * v for v in row) / 64)
        logits = [scale * sum(a * b for a, b in zip(row, router[64 * e:64 * (e + 1)])) for e in range(8)]
        for e in sorted(range(8), key=lambda e: -logits[e])[:2]:
            used[e] += 1
    assert min(used) > 0.4 * 96 * 2 / 8 and max(used) < 2 * 96 * 2 / 8, used


def test_gguf_does_not_depend_on_processes_but_on_the_seed(tiny, tmp_path):
    gguf_write.write(tmp_path / "one.gguf", TINY, seed=3, processes=1)
    gguf_write.write(tmp_path / "other.gguf", TINY, seed=4, processes=1)
    assert (tmp_path / "one.gguf").read_bytes() == tiny.raw
    other = (tmp_path / "other.gguf").read_bytes()
    assert len(other) == len(tiny.raw) and other[:tiny.data] == tiny.raw[:tiny.data] and other != tiny.raw


def test_gguf_chunks_fit_together(tiny, tmp_path, monkeypatch):
    """A tensor of many chunks has no holes: no run of zero bytes, and the same size."""
    monkeypatch.setattr(gguf_write, "CHUNK_BYTES", 1000)
    gguf_write.write(tmp_path / "cut.gguf", TINY, seed=3, processes=1)
    cut = Reader(tmp_path / "cut.gguf")
    assert len(cut.raw) == len(tiny.raw) and cut.raw[:cut.data] == tiny.raw[:tiny.data]
    for name, (_, _, offset) in cut.tensors.items():
        raw = cut.raw[cut.data + offset:][:cut.size(name)]
        assert bytes(16) not in raw, name


def test_gguf_package_reads_it(tiny, tmp_path):
    gguf = pytest.importorskip("gguf", reason="the gguf package is not installed")
    path = tmp_path / "tiny.gguf"
    path.write_bytes(tiny.raw)
    read = gguf.GGUFReader(path)
    assert {t.name: tuple(int(d) for d in t.shape) for t in read.tensors} == {n: t[0] for n, t in tiny.tensors.items()}


def test_sizes_of_the_published_shape():
    full = gguf_write.Shape()
    assert gguf_write.total_bytes(full) == sum(t.n_bytes() for t in gguf_write.tensors(full)) == 19_572_951_552
    # 1.868 GB a token at 256 in all, of which 0.131 GB are state and keys
    assert abs(gguf_write.active_bytes(full) - 1.734e9) < 1e6
    eight = gguf_write.total_bytes(gguf_write.Shape(layers=8))
    four, twelve = (gguf_write.total_bytes(gguf_write.Shape(layers=n)) for n in (4, 12))
    assert eight - four == twelve - eight  # equal fours of layers


def test_gguf_refuses_a_width_that_is_no_whole_block():
    with pytest.raises(AssertionError, match="rows of 40 weights"):
        gguf_write.tensors(gguf_write.Shape(layers=4, hidden=40))


# ---- figures ----

LLAMA_PRINTED = [
    {"n_prompt": 64, "n_gen": 0, "n_depth": 0, "samples_ts": [30.0]},
    {"n_prompt": 0, "n_gen": 64, "n_depth": 256, "samples_ts": [7.0, 9.0, 8.0]}]
IK_PRINTED = [{"n_prompt": 64, "n_gen": 0, "samples_ts": [40.0]}, {"n_prompt": 256, "n_gen": 64, "samples_ts": [7.5]}]
LILY_PRINTED = {"results": [
    {"context": 64, "prefill_tok_s": 60.0, "decode_tok_s": 15.0, "prefill_bound_share": 0.5, "decode_bound_share": 0.8},
    {"context": 256, "prefill_tok_s": 120.0, "decode_tok_s": 14.0, "prefill_bound_share": 0.6, "decode_bound_share": 0.78}]}


def test_rows_of_each_engine():
    assert figures.peer_rows(LLAMA_PRINTED) == {("prefill", 64): 30.0, ("decode", 256): 8.0}
    assert figures.peer_rows(IK_PRINTED) == {("prefill", 64): 40.0, ("decode", 256): 7.5}
    assert figures.lily_rows(LILY_PRINTED, [64], [256]) == {("prefill", 64): 60.0, ("decode", 256): 14.0}
    assert figures.lily_shares(LILY_PRINTED, [64], [256]) == {("prefill", 64): 0.5, ("decode", 256): 0.78}
    with pytest.raises(ValueError, match="is no row"):
        figures.peer_rows([{"n_prompt": 64, "n_gen": 0, "n_depth": 256, "samples_ts": [1.0]}])


def test_ratios_are_taken_within_rounds():
    """The machine runs at half speed in the second round: the ratio does not move."""
    s = figures.spread(figures.ratios([20.0, 10.0, 20.0], [10.0, 5.0, 10.0]))
    assert s == {"median": 2.0, "min": 2.0, "max": 2.0, "n": 3}
    assert figures.ratios([20.0, None, 8.0], [10.0, 5.0, None]) == [2.0]
    assert figures.spread([None]) is None
    assert figures.spread([3.0, None, 1.0, 2.0]) == {"median": 2.0, "min": 1.0, "max": 3.0, "n": 3}


def test_the_best_other_engine_is_the_one_with_the_least_ratio():
    row, late = ("decode", 256), ("decode", 4096)
    entries = figures.summary({"lily": {row: [14.0, 16.0], late: [None, None]}, "a": {row: [7.0, 8.0], late: [None, None]},
                               "b": {row: [10.0, 10.0], late: [None, None]}})
    assert entries[0]["best"] == "b" and entries[0]["ratio_to_best"]["median"] == pytest.approx(1.5)
    assert entries[0]["ratios"]["a"]["median"] == 2.0
    assert "best" not in entries[1]
    text = figures.table(entries)
    assert "decode @256" in text and "2.00 (2.00..2.00)" in text and "1.50 (1.40..1.60)" in text
    assert text.splitlines()[2].split()[-4:] == ["-", "-", "-", "0"]


def test_line_through_two_numbers_of_layers():
    head_s, layer_s = 0.02, 0.003

    def tok_s(n):
        return 1 / (head_s + n * layer_s)
    assert figures.line_at(4, tok_s(4), 8, tok_s(8), 40) == pytest.approx(tok_s(40))
    assert figures.line_at(4, 10.0, 8, 11.0, 40) is None  # more layers cannot take less time
    assert figures.line_at(4, None, 8, 11.0, 40) is None
    row = ("decode", 256)
    samples = {4: {"lily": {row: [tok_s(4), tok_s(4) / 2]}}, 8: {"lily": {row: [tok_s(8), tok_s(8) / 2]}}}
    assert figures.extrapolate(samples, 4, 8, 40)["lily"][row] == pytest.approx([tok_s(40), tok_s(40) / 2])


def test_byte_share_of_a_peer():
    facts = {"active_bytes": gguf_write.active_bytes(gguf_write.Shape())}
    # 7.11 tok/s of 1.865 GB at 25 GB/s
    assert compare.byte_share(facts, 40, 256, 7.11, 25.0) == pytest.approx(0.53, abs=0.005)


def test_the_others_are_held_against_the_rate_of_lily_s_row_of_the_round():
    """The memory gave 30 GB/s at its best and 20 around the steps behind 4,096: that is every engine's bound there."""
    printed = {"read_gb_s": 30.0, "results": [{"context": 256, "read_gb_s": 25.0}, {"context": 512, "read_gb_s": 30.0},
                                              {"context": 4096, "read_gb_s": 20.0}]}
    rates = figures.lily_read_gb_s(printed, [256, 4096])
    assert rates == {("decode", 256): 25.0, ("decode", 4096): 20.0}
    facts = {"active_bytes": gguf_write.active_bytes(gguf_write.Shape())}
    rows = {("prefill", 512): 60.0, ("decode", 256): 7.0, ("decode", 4096): 7.0}
    runs = [{"engine": "a", "rows": rows}, {"engine": "lily", "rows": rows, "shares": {"own": 1}, "read_gb_s": rates}, {"engine": "b", "rows": rows}]
    compare.hold_peers(runs, facts, 40)
    assert runs[1]["shares"] == {"own": 1}
    for run in runs[::2]:
        assert run["read_gb_s"] == rates and set(run["shares"]) == set(rates)
        assert run["shares"]["decode", 256] == pytest.approx(1.865e9 * 7 / 25e9, rel=0.01)
        assert run["shares"]["decode", 4096] == pytest.approx((1.865e9 + 3840 * 20480) * 7 / 20e9, rel=0.01)
    compare.hold_peers([{"engine": "lily", "read_gb_s": {}}, {"engine": "a", "rows": rows}], facts, 40)  # a round without decoding


# ---- fetching and patching ----

def test_an_archive_with_another_hash_is_refused(tmp_path):
    (tmp_path / "sdist").mkdir()
    (tmp_path / "sdist" / peers.IK.archive).write_bytes(b"something else")
    with pytest.raises(peers.CompareError, match="expected SHA-256 33c67eb9.*, found "):
        peers.fetch(peers.IK, tmp_path)


def test_unpack_takes_one_folder_and_only_that(tmp_path):
    tree = tmp_path / "tree/pack-1/vendor"
    (tree / "engine/sub").mkdir(parents=True)
    (tree / "engine/sub/file").write_text("x")
    (tree / "engine2").mkdir()
    (tree / "engine2/file").write_text("y")
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "tree/pack-1", "pack-1")
    peers.unpack(tmp_path / "a.tar.gz", "pack-1/vendor/engine", tmp_path / "src/engine")
    assert (tmp_path / "src/engine/sub/file").read_text() == "x"
    assert [p.name for p in (tmp_path / "src").iterdir()] == ["engine"]
    with pytest.raises(peers.CompareError, match="expected a folder pack-1/other"):
        peers.unpack(tmp_path / "a.tar.gz", "pack-1/other", tmp_path / "src/other")


def test_amx_barrier_goes_in_once_and_only_where_it_is_known(tmp_path):
    path = tmp_path / peers.AMX_FILE
    path.parent.mkdir(parents=True)
    path.write_text("void f() {\n" + peers.AMX_CALL + "}\n")
    for _ in range(2):
        peers.add_amx_barrier(tmp_path)
        assert path.read_text() == "void f() {\n" + peers.AMX_BARRIER + peers.AMX_CALL + "}\n"
    path.write_text("void f() {}\n")
    with pytest.raises(peers.CompareError, match="expected one line _tile_loadconfig"):
        peers.add_amx_barrier(tmp_path)


def test_the_script_that_the_package_lacks_is_added_once(tmp_path):
    (tmp_path / "common").mkdir()
    peers.add_info_script(tmp_path)
    script = tmp_path / peers.INFO_SCRIPT
    assert script.read_text() == peers.INFO_TEXT
    script.write_text("their own")
    peers.add_info_script(tmp_path)
    assert script.read_text() == "their own"


def test_commands_of_a_round(tmp_path):
    def words(peer, *args):
        return [" ".join(map(str, c)) for c in peers.commands(peer, tmp_path, "m.gguf", 2, *args)]
    prefill, decode = words(peers.LLAMA, [64, 512], [256, 4096], 64, 2048)
    assert "-p 32,64,512 -n 0" in prefill and "--no-warmup" in prefill and "-t 2" in prefill
    assert "-p 0 -n 64 -d 256,4096" in decode and "--no-warmup" not in decode
    (both,) = words(peers.IK, [64, 512], [256, 4096], 64, 2048)
    assert "-p 32,64,512 -n 0 -gp 256,64 -gp 4096,64" in both and "-rtr 1" in both


def test_a_failing_engine_names_its_log(tmp_path):
    with pytest.raises(peers.CompareError, match=r"false: exit status 1; see .*log"):
        peers.measure(["false"], tmp_path / "log")
    text, peak = peers.measure(["echo", "hello"], tmp_path / "log")
    assert text == "hello\n" and peak > 0
    assert (tmp_path / "log").read_text() == "$ false\n$ echo hello\n"


# ---- the command ----

def command(*args):
    return subprocess.run([sys.executable, str(COMPARE / "compare.py"), *map(str, args)], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("args, what", [
    (["--layers", "6"], "expected different multiples of 4 from 4 to 40 separated by commas, found 6"),
    (["--layers", "44"], "found 44"),
    (["--layers", "4,8,12"], "expected one count or two"),
    (["--layers", "8,8"], "found 8,8"),
    (["--decode", ""], "found "),
    (["--decode", "256,x"], "found 256,x"),
    (["--rounds", "0"], "expected a whole number from 1 to 100, found 0"),
    (["--threads", "-1"], "found -1"),
    (["--engines", "llama.cpp"], "expected lily and others of llama.cpp, ik_llama.cpp, found llama.cpp"),
    (["--engines", "lily,vllm"], "found lily,vllm"),
    (["--engines", "lily"], "found lily"),
    (["--lily-model", "x", "--layers", "4,8"], "--lily-model has one count of layers"),
    (["--steps"], "expected one argument"),
])
def test_bad_arguments(args, what):
    done = command(*args)
    assert done.returncode == 2 and what in done.stderr and not done.stdout


def test_a_missing_program_is_said_before_anything_is_fetched(tmp_path):
    done = command("--work", tmp_path / "work", "--lily", tmp_path / "nowhere")
    assert done.returncode == 1 and done.stderr == f"compare: {tmp_path}/nowhere: not there; `make` builds it\n"
    assert list((tmp_path / "work").iterdir()) == []


def test_options_have_the_rows_of_the_issue():
    o = compare.parse_options(["--layers", "8,4", "--rounds", "5", "--long-rounds", "9"])
    assert o.layers == [4, 8] and o.prefill == [64, 512, 2048] and o.decode == [256, 4096] and o.long_rounds == 5
    assert compare.parse_options(["--rounds", "2"]).long_rounds == 2


def test_lily_must_run_the_same_layers_and_bytes():
    facts = {"weight_bytes": 4_000_000_000}
    compare.check_lily({"model": {"layers": 8, "weight_bytes": 4_050_000_000}}, 8, facts)
    with pytest.raises(peers.CompareError, match="lily ran 4 layers, expected 8"):
        compare.check_lily({"model": {"layers": 4, "weight_bytes": 4_050_000_000}}, 8, facts)
    with pytest.raises(peers.CompareError, match="lily's weights have 3.000 GB"):
        compare.check_lily({"model": {"layers": 8, "weight_bytes": 3_000_000_000}}, 8, facts)


STAND_IN = """#!{python}
import json, sys
a = sys.argv[1:]
def after(name):
    return a[a.index(name) + 1] if name in a else ""
with open({calls!r}, "a") as f:
    f.write({engine!r} + "\\n")
speed = {speed}
if a[0] == "bench":
    rows = [dict(context=int(n), prefill_tok_s=100 * speed, decode_tok_s=speed, prefill_bound_share=0.5, decode_bound_share=0.8,
                 read_gb_s=20.0, experts_per_layer_step=8.0) for n in after("--contexts").split(",")]
    print(json.dumps(dict(model=dict(layers=8, weight_bytes={weights}), versions=dict(commit="0123456789"), read_gb_s=25.0, results=rows)))
else:
    out = [dict(n_prompt=int(n), n_gen=0, n_depth=0, samples_ts=[100 * speed]) for n in after("-p").split(",") if n != "0"]
    if after("-d"):
        out += [dict(n_prompt=0, n_gen=64, n_depth=int(n), samples_ts=[speed]) for n in after("-d").split(",")]
    out += [dict(n_prompt=int(a[i + 1].split(",")[0]), n_gen=64, samples_ts=[speed]) for i, x in enumerate(a) if x == "-gp"]
    print(json.dumps(out))
"""


def test_rounds_alternate_and_are_kept(tmp_path, monkeypatch, capsys):
    """The whole path with stand-ins for the engines: order, long rows in the first rounds alone, record."""
    weights = gguf_write.total_bytes(gguf_write.Shape(layers=8))
    calls = tmp_path / "calls"
    places = {"lily": (tmp_path / "lily", 15.0), "llama.cpp": (peers.LLAMA.bench(tmp_path), 7.5),
              "ik_llama.cpp": (peers.IK.bench(tmp_path), 10.0)}
    for engine, (path, speed) in places.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(STAND_IN.format(python=sys.executable, calls=str(calls), engine=engine, speed=speed, weights=weights))
        path.chmod(0o755)
    facts = {"weight_bytes": weights, "active_bytes": gguf_write.active_bytes(gguf_write.Shape(layers=8))}
    monkeypatch.setattr(compare, "prepare", lambda o: ({"llama.cpp": []}, {8: (tmp_path / "m.gguf", facts)}))
    monkeypatch.setattr(compare, "memory_available", lambda: 1 << 40)
    args = ["--work", str(tmp_path), "--layers", "8", "--lily", str(tmp_path / "lily"), "--rounds", "3", "--long-rounds", "1", "--no-record"]
    assert compare.main(args) == 0
    # llama.cpp needs two runs a round, but for nothing when only one kind of row is left
    assert calls.read_text().split() == ["lily", "llama.cpp", "llama.cpp", "ik_llama.cpp", "llama.cpp", "llama.cpp", "ik_llama.cpp", "lily",
                                         "ik_llama.cpp", "lily", "llama.cpp", "llama.cpp"]
    (path,) = tmp_path.glob("results-*-8l.json")
    record = json.loads(path.read_text())
    by_row = {(e["kind"], e["tokens"]): e for e in record["summary"]["8"]}
    assert by_row["decode", 256]["ratio_to_best"] == {"median": 1.5, "min": 1.5, "max": 1.5, "n": 3}
    assert by_row["decode", 256]["best"] == "ik_llama.cpp" and by_row["decode", 256]["ratios"]["llama.cpp"]["median"] == 2.0
    assert by_row["decode", 4096]["ratio_to_best"]["n"] == 1 and by_row["prefill", 2048]["ratio_to_best"]["n"] == 1
    assert record["versions"]["commit"].startswith("0123456789")
    assert len(record["runs"]) == 9 and record["runs"][0]["rows"]["decode_256"] == 15.0
    for run in record["runs"]:
        assert set(run["read_gb_s"].values()) == {20.0} and set(run["read_gb_s"]) <= {"decode_256", "decode_4096"}
        s = compare.byte_share(facts, 8, 256, run["rows"]["decode_256"], 20.0) if run["engine"] != "lily" else 0.8
        assert run["shares"]["decode_256"] == pytest.approx(s)
    text = capsys.readouterr().out
    assert "decode @256" in text and "by the read rate around lily's steps of the same\nrow and round, minutes apart" in text


def test_too_little_memory_is_said_before_an_engine_starts(tmp_path, monkeypatch, capsys):
    facts = {"weight_bytes": 19_000_000_000, "active_bytes": 1}
    monkeypatch.setattr(compare, "prepare", lambda o: ({}, {40: (tmp_path / "m.gguf", facts)}))
    monkeypatch.setattr(compare, "memory_available", lambda: 10_000_000_000)
    assert compare.main(["--work", str(tmp_path), "--no-record"]) == 1
    assert "40 layers: expected 20.1 GB of memory available, found 10.0" in capsys.readouterr().err


def test_random_values_hold_for_any_seed():
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    raw = gguf_write.matrix_bytes(random.Random(seed), 4000, 0.05)
    scales = [struct.unpack_from("<e", raw, i)[0] for i in range(0, len(raw), 18)]
    assert all(0.2 < abs(s) * 4.64 * 1.04 / 0.05 < 2 for s in scales)
    assert abs(sum(s < 0 for s in scales) / len(scales) - 0.5) < 0.05


def test_commands_shown_in_the_documents_are_understood():
    shown = [line.split("#")[0].strip() for line in (ROOT / "docs/performance.md").read_text().splitlines()
             if line.startswith("    make compare")]
    assert len(shown) == 3
    for line in shown:
        done = subprocess.run(["make", "-n", "CUDA=0", *shlex.split(line)[1:]], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
        (run,) = [x for x in done.stdout.splitlines() if "compare.py" in x]
        o = compare.parse_options(shlex.split(run)[2:])
        assert o.lily == pathlib.Path("build/lily") and o.layers in ([40], [8], [4, 8]) and o.engines == ["lily", "llama.cpp", "ik_llama.cpp"]
