# SPDX-License-Identifier: Apache-2.0
"""Clients that hang up, crawl, flood or may not ask; how the server starts and stops."""
import ctypes
import json
import os
import re
import resource
import shutil
import signal
import socket
import ssl
import subprocess
import time

import pytest

from conftest import LILY, ROOT
from serving import BACKEND, SLOW, Server, at_once, events, no_end, read_all, read_answer, read_stream, unchunk, words

MICRO = "synth:micro"
NEVER_ENDS = {"logit_bias": no_end(300), "temperature": 0}
HI = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture(scope="module")
def server():
    with Server("--max-seqs", "4", "--max-queue", "4", "--ctx", "262144", "--idle-timeout", "3", model=MICRO) as s:
        yield s


def until(what, seconds=20):
    end = time.time() + seconds * SLOW
    while time.time() < end:
        if what():
            return
        time.sleep(0.01)
    raise AssertionError("it did not come to that")


def free_blocks(server):
    """KV blocks that nobody holds, when all is quiet; the cache's snapshots hold some."""
    return server.wait_idle()["kv_blocks_free"]


# ---- clients that hang up ----

def test_hang_up_while_decoding(server):
    gone = server.metrics()["requests_gone_total"]
    with server.stream("hi", max_tokens=100000, **NEVER_ENDS) as s:
        until(lambda: b"content" in s.recv(4096))
        assert server.metrics()["sequences_active"] == 1
    until(lambda: server.metrics()["sequences_active"] == 0)
    until(lambda: server.metrics()["requests_gone_total"] == gone + 1)
    server.wait_for("status=499")
    line = next(l for l in reversed(server.lines) if "status=499" in l)
    assert "finish=cancelled" in line


def test_hang_up_on_a_whole_answer_while_nothing_is_sent(server):
    body = json.dumps({**HI, "max_tokens": 100000, **NEVER_ENDS}).encode()
    with server.connect() as s:
        s.sendall(server.head("POST", "/v1/chat/completions", None, len(body)) + body)
        until(lambda: server.metrics()["sequences_active"] == 1)
    until(lambda: server.metrics()["sequences_active"] == 0)


def test_hang_up_in_the_middle_of_a_prompt():
    with Server("--backend", "ref", "--threads", "1", "--chunk", "64", model="synth:tiny,layers=4") as s:
        for is_stream in (True, False):
            body = json.dumps({"messages": [{"role": "user", "content": words(20000, 1)}], "stream": is_stream}).encode()
            with s.connect() as c:
                c.sendall(s.head("POST", "/v1/chat/completions", None, len(body)) + body)
                until(lambda: s.metrics()["sequences_active"] == 1)
            started = time.time()
            until(lambda: s.metrics()["sequences_active"] == 0)
            assert time.time() - started < 4 * SLOW  # a chunk of 64 tokens, not the whole prompt
        assert s.metrics()["generated_tokens_total"] == 0


def test_hang_up_while_queued():
    with Server("--max-seqs", "1", "--ctx", "65536", model=MICRO) as s:
        with s.stream("hi", max_tokens=60000, **NEVER_ENDS) as first:
            first.recv(4096)
            for is_stream in (True, False):
                body = json.dumps({**HI, "stream": is_stream}).encode()
                with s.connect() as c:
                    c.sendall(s.head("POST", "/v1/chat/completions", None, len(body)) + body)
                    until(lambda: s.metrics()["sequences_waiting"] == 1)
                until(lambda: s.metrics()["sequences_waiting"] == 0)
            assert s.metrics()["sequences_active"] == 1, "the one that runs goes on"
        s.wait_idle()


def test_hang_up_before_the_body_is_whole(server):
    n = server.metrics()["connections"]
    for sent in (b"", b"{", b'{"messages": ['):
        with server.connect() as s:
            s.sendall(server.head("POST", "/v1/chat/completions", None, 1000) + sent)
    until(lambda: server.metrics()["connections"] <= n)
    assert server.health()["status"] == "ready"


def test_hundred_hang_ups_give_every_block_back():
    with Server("--max-seqs", "4", "--no-cache", model=MICRO) as s:
        before = free_blocks(s)
        for i in range(100):
            body = json.dumps({**HI, "max_tokens": 3000, "stream": bool(i % 2), "n": 1 + i % 3, **NEVER_ENDS}).encode()
            with s.connect() as c:
                c.sendall(s.head("POST", "/v1/chat/completions", None, len(body)) + body)
                if i % 3:
                    c.settimeout(0.02 * (i % 5))
                    try:
                        c.recv(1000)
                    except (TimeoutError, BlockingIOError):
                        pass
        assert free_blocks(s) == before == s.metrics()["kv_blocks"]


# ---- slow clients ----

def test_a_reader_that_stops_reading_waits_and_others_do_not():
    with Server("--max-seqs", "1", "--ctx", "65536", "--idle-timeout", "600", model=MICRO) as server, \
            server.connect() as slow:
        # 20 log-probabilities a token fill what the system buffers for a connection in a few seconds.
        body = json.dumps({**HI, "stream": True, "max_tokens": 60000, "logprobs": True, "top_logprobs": 20,
                           **NEVER_ENDS}).encode()
        slow.sendall(server.head("POST", "/v1/chat/completions", None, len(body)) + body)

        def made():
            a = server.metrics()["generated_tokens_total"]
            time.sleep(0.5 * SLOW)
            return server.metrics()["generated_tokens_total"] - a
        until(lambda: made() == 0, 60)
        assert server.metrics()["answers_live"] == 1
        done = at_once([lambda: server.post("/v1/chat/completions", {**HI, "max_tokens": 20, **NEVER_ENDS})
                        for _ in range(4)])
        assert [d[0] for d in done] == [200] * 4, "its place in the batch went to others"
        before = server.metrics()["generated_tokens_total"]
        end = time.time() + 20 * SLOW
        while server.metrics()["generated_tokens_total"] == before and time.time() < end:
            for _ in range(20):
                slow.recv(1 << 20)
        assert server.metrics()["generated_tokens_total"] > before, "it goes on when it is read"


def test_a_slow_reader_gets_the_same_bytes(server):
    def content(slow):
        with server.connect() as s:
            body = json.dumps({**HI, "stream": True, "max_tokens": 500, **NEVER_ENDS}).encode()
            if slow:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 17)
            s.sendall(server.head("POST", "/v1/chat/completions", {"Connection": "close"}, len(body)) + body)
            data = b""
            while piece := s.recv(3000 if slow else 1 << 20):
                data += piece
                time.sleep(0.0005 if slow else 0)
        parts = events(unchunk(data.partition(b"\r\n\r\n")[2]))
        return "".join(c["delta"].get("content") or c["delta"].get("reasoning") or "" for v in parts if v != "[DONE]"
                       for c in v["choices"])
    assert content(True) == content(False)


@pytest.mark.parametrize("size", [1, 7, 100])
def test_a_request_that_arrives_in_pieces(server, size):
    body = json.dumps({**HI, "max_tokens": 2}).encode()
    data = server.head("POST", "/v1/chat/completions", {"Connection": "close"}, len(body)) + body
    with server.connect() as s:
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for i in range(0, len(data), size):
            s.sendall(data[i:i + size])
        assert read_answer(s)[0] == 200


def test_requests_on_one_connection_and_behind_each_other(server):
    body = json.dumps({**HI, "max_tokens": 1}).encode()
    one = server.head("POST", "/v1/chat/completions", None, len(body)) + body
    with server.connect() as s:
        s.sendall(one * 3 + server.head("GET", "/health", {"Connection": "close"}))
        data = read_all(s)
    assert data.count(b"HTTP/1.1 200 OK") == 4 and b'"status":"ready"' in data


def test_http_1_0_streams_until_the_close(server):
    body = json.dumps({**HI, "max_tokens": 3, "stream": True}).encode()
    with server.connect() as s:
        s.sendall(server.head("POST", "/v1/chat/completions", None, len(body)).replace(b"HTTP/1.1", b"HTTP/1.0") + body)
        data = read_all(s)
    assert b"Transfer-Encoding" not in data and data.endswith(b"data: [DONE]\n\n")


def test_a_head_that_never_ends(server):
    with server.connect() as s:  # fast: the head is too large
        try:
            s.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n")
            for _ in range(2000):
                s.sendall(b"X-Filler: " + b"a" * 100 + b"\r\n")
        except (BrokenPipeError, ConnectionResetError):
            pass
        try:
            answer = s.recv(1000)
        except ConnectionResetError:
            answer = b""
        assert answer == b"" or answer.startswith(b"HTTP/1.1 431") or answer.startswith(b"HTTP/1.1 4")
    with server.connect() as s:  # slow: its time is over
        start, answer = time.time(), b""
        s.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: ")
        s.settimeout(0.2)
        while time.time() - start < 20 * SLOW:
            try:
                s.sendall(b"a")
                answer = s.recv(1000)
                break
            except TimeoutError:
                continue
            except (BrokenPipeError, ConnectionResetError):
                break
        assert time.time() - start < 10 * SLOW and (not answer or answer.startswith(b"HTTP/1.1 408"))
    assert server.health()["status"] == "ready"


def test_a_body_that_never_ends():
    with Server("--idle-timeout", "1", model=MICRO) as server, server.connect() as s:
        s.sendall(server.head("POST", "/tokenize", None, 100000))
        start = time.time()
        s.settimeout(0.2)
        with pytest.raises((BrokenPipeError, ConnectionResetError, ConnectionAbortedError)):
            while time.time() - start < 40 * SLOW:
                s.sendall(b" ")
                try:
                    if s.recv(10) == b"":
                        raise ConnectionResetError
                except TimeoutError:
                    pass
        assert time.time() - start < 15 * SLOW


def test_a_body_of_100_MB_is_413_and_others_are_served(server):
    piece = b" " * (1 << 20)
    for length in (str(100 << 20), None):
        with server.connect() as s:
            if length:
                s.sendall(server.head("POST", "/v1/chat/completions", {"Connection": "close"}, length))
                for i in range(100):
                    s.sendall(piece)
                    if i == 50:
                        assert server.health()["status"] == "ready"
            else:
                s.sendall(server.head("POST", "/v1/chat/completions", {
                    "Connection": "close", "Content-Type": "application/json", "Transfer-Encoding": "chunked"}))
                for _ in range(100):
                    s.sendall(b"100000\r\n" + piece + b"\r\n")
                s.sendall(b"0\r\n\r\n")
            status, _, body = read_answer(s)
        assert status == 413 and json.loads(body)["error"]["code"] == "too_large"
    with server.connect() as s:  # who asks first need not send it
        s.sendall(server.head("POST", "/v1/chat/completions", {"Expect": "100-continue", "Connection": "close"}, 100 << 20))
        assert read_answer(s)[0] == 413


def test_1000_idle_connections_do_not_disturb(server):
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),
                                                resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    idle = [server.connect() for _ in range(1000)]
    try:
        until(lambda: server.metrics()["connections"] >= 1000)
        assert server.post("/v1/chat/completions", {**HI, "max_tokens": 4})[0] == 200
        until(lambda: server.metrics()["connections"] < 100, 30)  # each is closed when its time is over
    finally:
        for s in idle:
            s.close()


def test_more_clients_than_max_connections():
    with Server("--max-connections", "10", "--threads", "1", model="synth:micro") as s:
        idle = [s.connect() for _ in range(9)]
        time.sleep(1.5)  # from now on they are old enough to make room
        for _ in range(5):
            assert s.request("GET", "/v1/models", timeout=20)[0] == 200
        assert s.metrics()["connections"] <= 10
        for c in idle:
            c.close()


def test_more_clients_than_descriptors():
    def few():
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
    with Server("--idle-timeout", "30", model=MICRO, preexec=few) as s:
        n = int(re.search(r"up to (\d+) connections", s.log).group(1))
        assert n < 128
        idle = [s.connect() for _ in range(300)]
        try:
            # The idle ones make room for those who ask.
            for _ in range(5):
                assert s.post("/v1/chat/completions", {**HI, "max_tokens": 2}, timeout=30)[0] == 200
        finally:
            for c in idle:
                c.close()


def test_nonsense_is_no_trouble(server):
    for data in (b"\r\n\r\n", b"GET\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/9.9\r\n\r\n", os.urandom(2000),
                 b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
                 b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                 b"Transfer-Encoding: chunked\r\n\r\nzz\r\n"):
        with server.connect(10) as s:
            s.sendall(data)
            s.shutdown(socket.SHUT_WR)
            read_all(s)
    assert server.health()["status"] == "ready"


# ---- the queue ----

def test_a_full_queue_is_429_with_retry_after(server):
    server.wait_idle()
    fill = [server.stream("hi", max_tokens=100000, **NEVER_ENDS) for _ in range(8)]
    for f in fill:
        f.__enter__().recv(4000)
    try:
        status, headers, v = server.post("/v1/chat/completions", HI)
        assert status == 429 and int(headers["retry-after"]) > 0
        assert v["error"]["type"] == "rate_limit_error" and "queue" in v["error"]["message"]
        assert server.post("/v1/chat/completions", {**HI, "stream": True})[0] == 429
        assert server.health()["status"] == "ready"
    finally:
        for f in fill:
            f.__exit__(None, None, None)
    server.wait_idle()
    assert server.post("/v1/chat/completions", {**HI, "max_tokens": 1})[0] == 200


def test_more_choices_than_places_at_once_take_turns():
    with Server("--max-seqs", "2", "--max-queue", "14", model=MICRO) as s:
        status, _, v = s.post("/v1/chat/completions", {**HI, "n": 16, "max_tokens": 5, **NEVER_ENDS})
        assert status == 200 and len(v["choices"]) == 16
        assert s.post("/v1/chat/completions", {**HI, "n": 16, "max_tokens": 5})[0] == 200


def test_a_quiet_client_is_not_starved_by_a_busy_one():
    with Server("--max-seqs", "2", "--max-queue", "64", "--no-cache", model=MICRO) as s:
        def ask(user, n):
            body = {**HI, "user": user, "max_tokens": n, **NEVER_ENDS}
            assert s.post("/v1/chat/completions", body)[0] == 200
            return time.time()
        ends = {}
        n = 600 if BACKEND == "cuda" else 60  # long enough for all of them to stand in line
        busy = [lambda i=i: ends.setdefault(("busy", i), ask("busy", n)) for i in range(20)]

        def quiet():
            until(lambda: s.metrics()["sequences_waiting"] > 10)
            ends["quiet"] = ask("quiet", 5)
        at_once(busy + [quiet])
        assert sum(t > ends["quiet"] for k, t in ends.items() if k != "quiet") >= 10


# ---- who may ask ----

def test_a_web_page_cannot_reach_it_by_rebinding(server):
    for host, wanted in (("localhost", 200), ("localhost:9", 200), ("127.0.0.1", 200), ("127.9.9.9:1", 200), ("[::1]:80", 200),
                         ("LOCALHOST", 200), ("evil.example", 403), ("127.0.0.1.evil.example", 403), ("", 403),
                         ("localhost.evil.example", 403), ("192.168.0.7", 403)):
        status, _, body = server.request("GET", "/health", None, {"Host": host})
        assert status == wanted, host
        if status == 403:
            assert json.loads(body)["error"]["code"] == "host_not_allowed"
    own = f"http://127.0.0.1:{server.port}"
    for origin, wanted in ((None, 200), (own, 200), ("http://evil.example", 403), ("null", 403),
                           ("http://127.0.0.1:1", 403), (own + ".evil.example", 403)):
        status, headers, _ = server.request("POST", "/tokenize", {"content": "x"}, {"Origin": origin})
        assert status == wanted, origin
        assert "access-control-allow-origin" not in headers
    assert server.request("POST", "/tokenize", b'{"content":"x"}', {"Content-Type": "text/plain"})[0] == 415
    assert server.request("OPTIONS", "/v1/chat/completions", None, {"Origin": "http://evil.example"})[0] == 403


def test_cors_only_for_named_origins():
    with Server("--cors", "https://app.example,http://localhost:3000", model=MICRO) as s:
        ask = {"Access-Control-Request-Method": "POST"}
        for origin in ("https://app.example", "http://localhost:3000"):
            status, headers, _ = s.request("OPTIONS", "/v1/chat/completions", None, {"Origin": origin, **ask})
            assert status == 204 and headers["access-control-allow-origin"] == origin
            assert "authorization" in headers["access-control-allow-headers"].lower()
            status, headers, _ = s.request("POST", "/tokenize", {"content": "x"}, {"Origin": origin})
            assert status == 200 and headers["access-control-allow-origin"] == origin and headers["vary"] == "Origin"
        assert s.request("POST", "/tokenize", {"content": "x"}, {"Origin": "https://other.example"})[0] == 403


def test_api_keys(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("# people\nsk-ann-1\n\n  sk-bob-2  \n")
    with Server("--api-keys", keys, "--host", "0.0.0.0", model=MICRO) as s:
        for key, wanted in ((None, 401), ("sk-ann-1", 200), ("sk-bob-2", 200), ("sk-ann-2", 401), ("sk-ann-1x", 401),
                            ("", 401), ("# people", 401)):
            headers = {} if key is None else {"Authorization": f"Bearer {key}"}
            status, got, body = s.request("GET", "/v1/models", None, headers)
            assert status == wanted, key
            if status == 401:
                assert json.loads(body)["error"]["code"] == "invalid_api_key" and "www-authenticate" in got
        assert s.request("GET", "/v1/models", None, {"Authorization": "Basic sk-ann-1"})[0] == 401
        assert s.request("GET", "/metrics")[0] == 401 and s.health()["status"] == "ready"
        # Where a key is needed, the name by which the machine is reached is not looked at.
        assert s.request("GET", "/v1/models", None, {"Host": "box.lan", "Authorization": "Bearer sk-ann-1"})[0] == 200
        assert "sk-ann" not in s.log


def test_the_cache_is_shared_within_one_key_alone(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("a\nb\n")
    body = {"messages": [{"role": "user", "content": words(2000, 3)}], "max_tokens": 1}
    for extra, wanted in (((), False), (("--cache-shared",), True)):
        with Server("--api-keys", keys, *extra, model=MICRO) as s:
            hits = [s.post("/v1/chat/completions", body, {"Authorization": f"Bearer {k}"})[2]["usage"]
                    ["prompt_tokens_details"]["cached_tokens"] > 0 for k in "aabb"]
            assert hits == [False, True, wanted, True]


def refused(*args, status=1, **kwargs):
    done = subprocess.run([LILY, "serve", "-m", MICRO, "--port", "0", *map(str, args)], capture_output=True, text=True,
                          timeout=30 * SLOW, cwd=ROOT, **kwargs)
    assert done.returncode == status and done.stdout == ""
    line = done.stderr.strip().split("\n")[0 if status == 2 else -1]  # behind wrong usage stands where help is
    assert line.startswith("lily serve: ")
    return line


def test_wrong_options_are_refused_in_one_line(tmp_path):
    assert "--api-keys" in refused("--host", "0.0.0.0")
    assert "--tls-key" in refused("--tls-cert", "x.pem", status=2)
    (tmp_path / "empty").write_text("# none\n")
    assert "empty" in refused("--api-keys", tmp_path / "empty")
    assert "missing" in refused("--api-keys", tmp_path / "missing")
    assert "--host no.such.host.invalid" in refused("--host", "no.such.host.invalid")
    (tmp_path / "a").write_text("no certificate")
    assert "certificate" in refused("--tls-cert", tmp_path / "a", "--tls-key", tmp_path / "a")
    assert "--unix" in refused("--unix", tmp_path / "a")
    done = subprocess.run([LILY, "serve", "-m", "/nowhere", "--port", "0"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 1 and "/nowhere" in done.stderr


def test_a_port_in_use_is_refused(server):
    done = subprocess.run([LILY, "serve", "-m", MICRO, "--port", str(server.port)], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 1 and f"port {server.port}" in done.stderr and "--port" in done.stderr


# ---- sockets ----

def test_unix_socket(tmp_path):
    path = tmp_path / "lily.sock"
    with Server("--unix", path, model=MICRO) as s:
        assert s.request("GET", "/health", None, {"Host": "anything"})[0] == 200
        assert s.post("/v1/chat/completions", {**HI, "max_tokens": 2})[0] == 200
        with s.stream("hi", max_tokens=5) as c:
            assert events(read_stream(c)[2])[-1] == "[DONE]"
        assert path.stat().st_mode & 0o007 == 0
        with s.stream("hi", max_tokens=5000, **NEVER_ENDS) as c:
            c.recv(3000)
        s.wait_idle()
        assert "another program" in refused("--unix", path)
    assert not path.exists()
    left = socket.socket(socket.AF_UNIX)  # a killed server leaves its file
    left.bind(str(path))
    left.close()
    with Server("--unix", path, model=MICRO) as s:
        assert s.health()["status"] == "ready"


def test_tls(tmp_path):
    if not shutil.which("openssl"):
        pytest.skip("openssl is not installed")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", tmp_path / "key.pem", "-out",
                    tmp_path / "cert.pem", "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"],
                   check=True, capture_output=True)
    with Server("--tls-cert", tmp_path / "cert.pem", "--tls-key", tmp_path / "key.pem", model=MICRO) as s:
        assert s.url.startswith("https://")
        context = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
        plain = s.connect
        s.connect = lambda timeout=60: context.wrap_socket(plain(timeout), server_hostname="localhost")
        assert s.post("/v1/chat/completions", {**HI, "max_tokens": 2})[0] == 200
        with s.stream("hi", max_tokens=200, **NEVER_ENDS) as c:
            assert events(read_stream(c)[2])[-1] == "[DONE]"
        with s.stream("hi", max_tokens=30000, **NEVER_ENDS) as c:
            c.recv(3000)
        s.wait_idle()
        s.connect = plain
        with s.connect() as c:  # plain HTTP to a TLS port
            c.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert not read_all(c).startswith(b"HTTP/1.1 200")


def test_no_outgoing_connections():
    """In a network namespace of its own, with loopback alone, everything works; and no other socket is there."""
    if os.geteuid() != 0:
        pytest.skip("a network namespace needs root")
    libc = ctypes.CDLL(None, use_errno=True)
    probe = subprocess.run(["unshare", "-n", "true"], capture_output=True)
    if probe.returncode:
        pytest.skip("no network namespaces here: " + probe.stderr.decode().strip())

    def alone():
        libc.unshare(0x40000000)  # CLONE_NEWNET
    sock = f"/tmp/lily-test-{os.getpid()}.sock"
    try:
        with Server("--unix", sock, preexec=alone) as s:
            assert s.post("/v1/chat/completions", {**HI, "max_tokens": 4})[0] == 200
            for path in ("/", "/metrics", "/openapi.json", "/v1/models"):
                assert s.request("GET", path)[0] == 200
            links = [os.readlink(f"/proc/{s.process.pid}/fd/{f}") for f in os.listdir(f"/proc/{s.process.pid}/fd")]
            inodes = {l[8:-1] for l in links if l.startswith("socket:")}
            inet = set()
            for kind in ("tcp", "tcp6", "udp", "udp6"):
                with open(f"/proc/{s.process.pid}/net/{kind}") as f:
                    inet |= {l.split()[9] for l in f.read().splitlines()[1:]}
            assert not inodes & inet, "a socket that nobody asked for"
    finally:
        if os.path.exists(sock):
            os.unlink(sock)


# ---- start and stop ----

def test_the_port_answers_while_the_model_loads():
    with Server(wait=False, model="synth:qwen3.6-35b-a3b,layers=1") as s:
        h = s.request("GET", "/health")
        if json.loads(h[2])["status"] == "loading":
            assert h[0] == 503 and "retry-after" in h[1] and "loaded" in json.loads(h[2])
            status, headers, v = s.post("/v1/chat/completions", HI)
            assert status == 503 and v["error"]["code"] == "loading" and "retry-after" in headers
            assert s.request("GET", "/")[0] == 200 and s.request("GET", "/metrics")[0] == 200
        else:
            pytest.skip("the model was there at once")
        s.process.send_signal(signal.SIGTERM)
        assert s.process.wait(30 * SLOW) == 0, "told to stop while loading, it does"


def test_SIGTERM_lets_answers_end_and_refuses_new_ones():
    s = Server("--max-seqs", "2", "--ctx", "16384", model=MICRO)
    with s.stream("hi", max_tokens=400, **NEVER_ENDS) as c:
        c.recv(3000)
        s.process.send_signal(signal.SIGTERM)
        s.wait_for("stopping")
        h = s.request("GET", "/health")
        assert h[0] == 503 and json.loads(h[2])["status"] == "draining"
        status, headers, v = s.post("/v1/chat/completions", HI)
        assert status == 503 and v["error"]["code"] == "draining" and "retry-after" in headers
        data = b""
        while not data.endswith(b"0\r\n\r\n"):
            piece = c.recv(65536)
            assert piece
            data += piece
    assert b"data: [DONE]" in data and b'"finish_reason":"length"' in data
    assert s.process.wait(20 * SLOW) == 0


@pytest.mark.parametrize("again", [False, True])
def test_SIGTERM_ends_long_answers_when_the_time_is_over_or_at_a_second_signal(again):
    s = Server("--stop-timeout", "100" if again else "1", "--ctx", "262144", model=MICRO)
    body = json.dumps({**HI, "max_tokens": 200000, **NEVER_ENDS}).encode()
    with s.stream("hi", max_tokens=200000, **NEVER_ENDS) as c, s.connect() as whole:
        whole.sendall(s.head("POST", "/v1/chat/completions", {"Connection": "close"}, len(body)) + body)
        c.recv(3000)
        until(lambda: s.metrics()["sequences_active"] == 2)
        start = time.time()
        s.process.send_signal(signal.SIGTERM)
        if again:
            s.wait_for("stopping")
            s.process.send_signal(signal.SIGINT)
        data = read_all(c)
        status, _, v = read_answer(whole)
    assert b"the server is stopping" in data and b"[DONE]" in data
    assert status == 503 and "stopping" in json.loads(v)["error"]["message"]
    assert s.process.wait(20 * SLOW) == 0 and time.time() - start < 15 * SLOW


def test_SIGTERM_with_a_client_that_reads_nothing_and_idle_ones():
    s = Server("--stop-timeout", "1", "--ctx", "262144", model=MICRO)
    idle = [s.connect() for _ in range(20)]
    with s.stream("hi", max_tokens=200000, **NEVER_ENDS):
        until(lambda: s.metrics()["sequences_active"] == 1)
        s.process.send_signal(signal.SIGTERM)
        assert s.process.wait(20 * SLOW) == 0
    for c in idle:
        c.close()


def test_the_service_manager_is_told(tmp_path):
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as n:
        n.bind(path)
        n.settimeout(30 * SLOW)
        with Server(model=MICRO, env={"NOTIFY_SOCKET": path}):
            assert n.recv(100) == b"READY=1"
        assert n.recv(100) == b"STOPPING=1"


def test_log_prompts_only_when_asked():
    with Server("--log-prompts", model=MICRO) as s:
        s.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "zebra 4711"}], "max_tokens": 1})
        s.wait_for("zebra 4711")


def test_heads_leave_before_the_first_token():
    with Server("--backend", "ref", "--threads", "1", "--chunk", "64", model="synth:tiny,layers=4") as s:
        with s.stream(words(4000, 1), max_tokens=1) as c:
            start = time.time()
            head = c.recv(4096)
            assert head.startswith(b"HTTP/1.1 200") and b": accepted" in head + c.recv(4096)
            assert time.time() - start < 0.8 * SLOW
            assert s.metrics()["generated_tokens_total"] == 0
