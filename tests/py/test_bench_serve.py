# SPDX-License-Identifier: Apache-2.0
"""`lily bench --serve`: against the real server, and against false ones whose answers are known."""
import http.server
import json
import threading
import time

import pytest

from serving import Server


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("sesame\n")
    with Server("--max-seqs", "8", "--threads", "2", "--api-keys", keys) as s:
        yield s


def bench(lily, url, *args, key="sesame", **kwargs):
    return lily("bench", "--serve", url, *args, env={"LILY_API_KEY": key}, **kwargs)


def test_figures_of_the_real_server(lily, server):
    before = server.metrics("sesame")
    done = bench(lily, server.url, "--contexts", "3,200", "--concurrency", "1,3", "--steps", "5", "--rounds", "2", "--json", "-")
    assert done.status == 0, done.err
    v = json.loads(done.text)
    after = server.metrics("sesame")
    assert v["model"] == "mini" and v["steps"] == 5 and v["rounds"] == 2 and v["versions"]["lily"]
    assert [(r["prompt_tokens"], r["concurrency"]) for r in v["results"]] == [(3, 1), (3, 3), (200, 1), (200, 3)]
    for r in v["results"]:
        assert r["answers"] == 2 * r["concurrency"] and r["tokens"] == 5 * r["answers"]
        assert 0 <= r["gaps"] <= 4 * r["answers"]
        f = r["first_token_ms"]
        assert 0 < f["min"] <= f["median"] <= f["p99"] <= f["max"] < 1e3 * r["seconds"]
        assert r["tok_s"] == pytest.approx(r["tokens"] / r["seconds"])
    # every prompt had its length and was read whole: the cache could help none but by chance
    warm = 3
    assert after["prompt_tokens_total"] - before["prompt_tokens_total"] == warm + 8 * 3 + 8 * 200
    assert after["cached_tokens_total"] == before["cached_tokens_total"]
    assert after["generated_tokens_total"] - before["generated_tokens_total"] == 4 + 16 * 5


def test_the_table_and_a_file(lily, server, tmp_path):
    out = tmp_path / "out.json"
    done = bench(lily, server.url + "/v1/", "--concurrency", "2", "--steps", "2", "--rounds", "1", "--contexts", "1", "--json", out)
    assert done.status == 0, done.err
    lines = done.text.splitlines()
    assert len(lines) == 3 and lines[2].split()[:2] == ["1", "2"]
    assert json.loads(out.read_text())["results"][0]["concurrency"] == 2


def test_what_the_server_refuses_is_told(lily, server):
    done = bench(lily, server.url, key="wrong")
    assert done.status == 1 and "status 401" in done.err and "Authorization" in done.err
    done = lily("bench", "--serve", server.url, "--api-key", "sesame", "--contexts", "1000000", "--concurrency", "1")
    assert done.status == 1 and "status 400" in done.err and "context" in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize("args, word", [
    (["--concurrency", "2"], "--serve"), (["--api-key", "x"], "--serve"), (["--serve", "ftp://x"], "ftp://x"),
    (["--serve", ""], "--serve"), (["--serve", "http://127.0.0.1:1", "--concurrency", "0"], "--concurrency"),
    (["--serve", "http://127.0.0.1:1", "--concurrency", "1,"], "--concurrency"),
    (["--serve", "http://127.0.0.1:1", "--concurrency", "1025"], "--concurrency"),
    (["--serve", "http://127.0.0.1:1", "--concurrency", ",".join("1" * 33)], "--concurrency"),
    (["--serve", "http://127.0.0.1:1", "--contexts", "5x"], "--contexts"),
    (["--serve", "http://127.0.0.1:1", "-m", "models/mini"], "server itself"),
    (["--serve", "http://127.0.0.1:1", "--threads", "2"], "server itself"),
])
def test_wrong_usage_is_status_2_and_names_it(lily, args, word):
    done = lily("bench", *args)
    assert done.status == 2 and word in done.err and done.err.count("\n") == 1 and done.text == ""


def test_nobody_listens(lily):
    done = lily("bench", "--serve", "http://127.0.0.1:1")
    assert done.status == 1 and "http://127.0.0.1:1" in done.err


class False_(http.server.BaseHTTPRequestHandler):
    """Answers every question with the events that its server was given: bytes, and seconds to wait."""
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        body = self.server.models
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        self.server.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.close_connection = True
        self.end_headers()
        for part in self.server.parts:
            if isinstance(part, float):
                time.sleep(part)
            else:
                self.wfile.write(part)
                self.wfile.flush()


@pytest.fixture
def false_server():
    made = []

    def make(parts, models=b'{"data":[{"id":"m \\"1\\""}]}'):
        s = http.server.ThreadingHTTPServer(("127.0.0.1", 0), False_)
        s.parts, s.models, s.asked = parts, models, []
        threading.Thread(target=s.serve_forever, daemon=True).start()
        made.append(s)
        s.url = f"http://127.0.0.1:{s.server_port}"
        return s
    yield make
    for s in made:
        s.shutdown()
        s.server_close()


def text(t):
    return b'data: {"choices":[{"text":"' + t + b'"}]}\n\n'


END = [b'data: {"choices":[],"usage":{"completion_tokens":4}}\r\n\r\n', b"data: [DONE]\n\n"]


def one(lily, s, **kwargs):
    done = lily("bench", "--serve", s.url, "--concurrency", "1", "--rounds", "1", "--contexts", "2", "--steps", "4", "--json", "-",
                **kwargs)
    return done, json.loads(done.text)["results"][0] if done.status == 0 else None


def test_moments_are_those_of_text_alone(lily, false_server):
    role = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
    s = false_server([b": accepted\n\n", role, 0.3, text(b"a"), b": working\n\n", text(b"b")[:9], text(b"b")[9:], 0.2, text(b"c"), *END])
    done, r = one(lily, s)
    assert r["gaps"] == 2 and r["tokens"] == 4 and r["answers"] == 1
    assert r["first_token_ms"]["min"] >= 295
    assert r["first_token_ms"]["max"] + r["gap_ms"]["min"] + r["gap_ms"]["max"] >= 495
    assert [len(a["prompt"]) for a in s.asked] == [2, 2]
    assert s.asked[1]["model"] == 'm "1"' and s.asked[1]["max_tokens"] == 4 and s.asked[1]["stream"] is True


def test_a_stream_split_anywhere_is_the_same(lily, false_server):
    whole = b"".join([text(b"a"), text(b"b"), text(b"c"), *END])
    s = false_server([whole[i:i + 1] for i in range(len(whole))])
    done, r = one(lily, s)
    assert r["gaps"] == 2 and r["tokens"] == 4


def test_an_answer_without_text_or_usage_counts(lily, false_server):
    done, r = one(lily, false_server([b"data: [DONE]\n\n"]))
    assert r["tokens"] == 0 and r["gap_ms"] is None and r["stream_tok_s"]["max"] == 0


@pytest.mark.parametrize("parts, word", [
    ([text(b"a")], "broke off behind 1"), ([b"data: {]\n\n", *END], "event"),
    ([b'data: {"error":{"message":"the device is lost"}}\n\n', *END], "the device is lost"),
    ([b'data: [1]\n\n', b"data: 5\n\n"], "broke off"),
])
def test_a_broken_stream_ends_the_run(lily, false_server, parts, word):
    done, _ = one(lily, false_server(parts))
    assert done.status == 1 and word in done.err and done.err.count("\n") == 1


@pytest.mark.parametrize("models, word", [(b"", "models"), (b"[]", "names no model"), (b'{"data":[{"id":5}]}', "names no model")])
def test_a_server_without_models(lily, false_server, models, word):
    done, _ = one(lily, false_server([], models))
    assert done.status == 1 and word in done.err


def test_no_proxy_stands_between(lily, false_server):
    done, r = one(lily, false_server([text(b"a"), *END]), env={"http_proxy": "http://127.0.0.1:1"})
    assert done.status == 0, done.err
