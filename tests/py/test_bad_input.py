# SPDX-License-Identifier: Apache-2.0
"""What a user gets by mistake, by a full disk or by Ctrl-C: one line, the right status, no rests."""
import http.server
import json
import os
import resource
import signal
import struct
import subprocess
import threading
import time

import pytest

from conftest import LILY, ROOT
from test_cli import TINY, assert_refused

MICRO = "synth:micro"


def assert_last_line(result, *words):
    """Lines before the error tell what was skipped in the folder."""
    assert result.status == 1 and result.out == b"", result.err
    assert all(w in result.err.splitlines()[-1] for w in words), result.err


# ---- outputs ----

def test_a_device_is_not_replaced_by_a_result(lily, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert_refused(lily("logits", "-m", MICRO, "--ids", "1", "-o", pipe), str(pipe), "special file")
    assert_refused(lily("logits", "-m", MICRO, "--ids", "1", "-o", tmp_path), str(tmp_path), "folder")
    assert_refused(lily("bench", "-m", MICRO, "--json", pipe), str(pipe), "special file")
    assert pipe.is_fifo()


def test_bench_leaves_no_half_written_file(lily, tmp_path):
    out = tmp_path / "bench.json"
    done = subprocess.run([LILY, "bench", "-m", MICRO, "--contexts", "8", "--steps", "2", "--rounds", "1", "--meter-mb", "16", "--json", out],
                          capture_output=True, preexec_fn=lambda: (
                              signal.signal(signal.SIGXFSZ, signal.SIG_IGN),
                              resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))))
    assert done.returncode == 1 and b"File too large" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_synth_leaves_no_part_of_a_file(tmp_path, sig):
    if not hasattr(os, "O_TMPFILE"):
        pytest.skip("no files without a name on this system")
    try:
        os.close(os.open(tmp_path, os.O_WRONLY | os.O_TMPFILE))
    except OSError:
        pytest.skip("no files without a name on this file system")
    out = tmp_path / "m"
    p = subprocess.Popen([LILY, "synth", "--shape", "qwen3.6-35b-a3b", "--layers", "1", "-o", out],
                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                         preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    deadline = time.time() + 60
    while not out.exists() and time.time() < deadline:
        time.sleep(0.005)
    p.send_signal(sig)
    p.wait()
    assert p.returncode == -sig
    assert [f.name for f in out.iterdir() if f.name.endswith(".part")] == []


def test_a_path_that_is_no_utf8_still_gives_json(lily, tmp_path):
    out = os.fsencode(tmp_path) + b"/\xff"
    done = subprocess.run([LILY, "logits", "-m", MICRO, "--ids", "1", "--json", "-o", out], capture_output=True)
    assert done.returncode == 0 and json.loads(done.stdout)["file"].endswith("/?")
    done = subprocess.run([LILY, "synth", "--shape", "micro", "--json", "-o", out + b"m"], capture_output=True)
    assert done.returncode == 0 and json.loads(done.stdout)["folder"].endswith("/?m")


def test_answer_and_figures_stay_in_order_in_one_stream():
    done = subprocess.run([LILY, "generate", "-m", TINY, "-p", "a", "-n", "3", "--ignore-eos", "--temp", "0"],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.stdout.endswith(b"finish: length\n")


# ---- usage ----

@pytest.mark.parametrize("args, words", [
    (["generate", "-m", TINY, "--ids", "1", "--system", "a"], ["--system", "--ids"]),
    (["generate", "-m", TINY, "--ids", "1", "--no-think"], ["--no-think", "--ids"]),
    (["generate", "-m", TINY, "--ids", "1", "--raw"], ["--raw", "--ids"]),
    (["generate", "-m", TINY, "-p", "a", "--raw", "--no-think"], ["--no-think", "--raw"]),
    (["template", "--thinking", "--no-think"], ["--thinking", "--no-think"]),
])
def test_options_that_exclude_each_other_are_refused(lily, args, words):
    assert_refused(lily(*args), *words, status=2)


@pytest.mark.parametrize("args, words, status", [
    (["inspect", "-m", ""], ["empty"], 2),
    (["bench", "-m", MICRO, "--contexts", ""], ["--contexts"], 2),
    (["bench", "-m", MICRO, "--steps", "1000000"], ["--steps", "1000000"], 1),
])
def test_empty_and_impossible_values(lily, args, words, status):
    assert_refused(lily(*args), *words, status=status)


def test_the_largest_chunk_is_as_good_as_the_context(lily):
    args = ["generate", "-m", TINY, "-p", "a", "-n", "4", "--temp", "0", "--ignore-eos", "--ctx", "128"]
    assert lily(*args, "--chunk", "16777216").text == lily(*args).text != ""


def test_inspect_fails_where_the_plan_is_refused_and_says_what_fits(lily):
    if b"cuda" in lily("--version").out:
        pytest.skip("cuda is built in")
    r = lily("inspect", "-m", MICRO, "--backend", "cuda")
    assert r.status == 1 and "cuda" in r.err and "refused" in r.text
    r = lily("inspect", "-m", MICRO, "--backend", "cuda", "--json")
    assert r.status == 1 and "cuda" in json.loads(r.out)["plan"]["refused"]
    assert json.loads(lily("inspect", "-m", MICRO, "--json").out)["plan"]["fits"] is True
    big = json.loads(lily("inspect", "-m", "synth:wide", "--ctx", "16777216", "--json").out)["plan"]
    assert big["fits"] is (big["total_bytes"] <= big["available_bytes"])


def test_bench_peak_is_the_runs_own_and_not_the_meters(lily):
    if not os.access("/proc/self/clear_refs", os.W_OK):
        pytest.skip("this system cannot reset the peak")
    r = lily("bench", "-m", MICRO, "--contexts", "8", "--steps", "2", "--rounds", "1", "--json", "-")
    assert 0 < json.loads(r.out)["results"][0]["peak_bytes"] < 512 << 20


# ---- checkpoints ----

@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "config.json",
                                  "generation_config.json", "model.safetensors", "model.safetensors.index.json"])
def test_a_pipe_among_the_files_is_refused_and_not_waited_for(lily, tmp_path, name):
    folder = tmp_path / "m"
    assert lily("synth", "--shape", "micro", "-o", folder).status == 0
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    assert_last_line(lily("generate", "-m", folder, "-p", "a", "-n", "1", timeout=20), name, "special file")


def test_a_nan_scale_names_file_and_tensor(lily, tmp_path):
    folder = tmp_path / "m"
    assert lily("synth", "--shape", "micro", "-o", folder).status == 0
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    (n,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + n])
    name = next(k for k in header if k.endswith("switch_mlp.up_proj.scales"))
    at = 8 + n + header[name]["data_offsets"][0]
    data[at:at + 2] = b"\xc0\x7f"
    path.write_bytes(data)
    assert_last_line(lily("generate", "-m", folder, "-p", "a", "-n", "1"), str(path), name, "found NaN")


@pytest.mark.parametrize("mask", [[], ["--cpu-mask", "avx512"], ["--backend", "ref"]])
def test_a_prompt_that_overflows_behind_the_last_layer_is_named(lily, tmp_path, mask):
    """Rows whose logits nobody wants, too: the first of two pieces."""
    folder = tmp_path / "m"
    assert lily("synth", "--shape", "tiny", "--layers", "4", "-o", folder).status == 0
    path = next(f for f in sorted(folder.glob("*.safetensors")) if b"layers.3.mlp.switch_mlp.down_proj.scales" in f.read_bytes())
    data = bytearray(path.read_bytes())
    (n,) = struct.unpack("<Q", data[:8])
    name, tensor = next(x for x in json.loads(data[8:8 + n]).items() if x[0].endswith("layers.3.mlp.switch_mlp.down_proj.scales"))
    begin, end = tensor["data_offsets"]
    data[8 + n + begin:8 + n + end] = b"\x7f\x7f" * ((end - begin) // 2)  # the largest bf16, 3.4e38
    path.write_bytes(data)
    r = lily("bench", "-m", folder, "--contexts", "128", "--chunk", "64", "--steps", "1", "--rounds", "1", "--meter-mb", "16", *mask)
    assert_last_line(r, "NaN or infinity behind layer 3 at position 0")


# ---- a hub that does not answer ----

def test_a_listing_that_never_comes_can_be_stopped(tmp_path):
    release = threading.Event()

    class Silent(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            release.wait(60)

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Silent)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    p = subprocess.Popen([LILY, "pull", "a/b", "-o", tmp_path / "m", "--hub",
                          f"http://127.0.0.1:{server.server_port}"], stderr=subprocess.PIPE,
                         env={**os.environ, "no_proxy": "127.0.0.1"})
    time.sleep(1)
    p.send_signal(signal.SIGINT)
    try:
        _, err = p.communicate(timeout=20)
    finally:
        p.kill()
        release.set()
        server.shutdown()
    assert p.returncode == 1 and b"stopped" in err


@pytest.mark.parametrize("closed", [0, 1, 2])
def test_a_closed_standard_stream_is_not_taken_by_a_file(closed):
    done = subprocess.run(["sh", "-c", f'exec "$0" generate -m synth:micro -p a --no-think --max-tokens 2 {closed}>&-', LILY],
                          capture_output=True, cwd=ROOT, timeout=60)
    assert done.returncode in (0, 1) and done.stderr.count(b"\n") <= 3, done.stderr[:500]
