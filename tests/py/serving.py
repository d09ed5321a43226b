# SPDX-License-Identifier: Apache-2.0
"""A running `lily serve` for tests, and the plainest HTTP there is to speak to it."""
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import tempfile
import threading
import time
import urllib.request

from conftest import LILY, ROOT

MINI = ROOT / "models/mini"
SLOW = float(os.environ.get("LILY_SLOW", "1"))  # sanitizers make everything slower
BACKEND = os.environ.get("LILY_BACKEND")  # for servers whose test names none

TOOLS = [{"type": "function", "function": {
    "name": "get_weather", "description": "Weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]
WEATHER = [{"role": "user", "content": "What is the weather in Paris?"}]
NO_THINK = {"chat_template_kwargs": {"enable_thinking": False}}


class Server:
    """`lily serve` on a free port; .log is what it has written so far."""

    def __init__(self, *args, model=MINI, wait=True, env=None, preexec=None, port=0):
        self.lines = []
        if BACKEND and "--backend" not in args:
            args += ("--backend", BACKEND)
        self.process = subprocess.Popen(
            [LILY, "serve", "-m", str(model), "--port", str(port), *map(str, args)], cwd=ROOT, stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL, text=True, env={**os.environ, **(env or {})}, preexec_fn=preexec)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        self.wait_for("listening on ")
        at = next(l for l in self.lines if "listening on " in l).split("listening on ")[1].split(" (")[0]
        self.unix = at[5:] if at.startswith("unix:") else None
        self.url = None if self.unix else at.rstrip("/")
        self.port = None if self.unix else int(self.url.rsplit(":", 1)[1])
        if wait:
            self.wait_for(" ready: ")

    def _read(self):
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))

    @property
    def log(self):
        return "\n".join(self.lines)

    def wait_for(self, text, seconds=60, times=1):
        end = time.time() + seconds * SLOW
        while time.time() < end:
            if sum(text in l for l in list(self.lines)) >= times:
                return
            if self.process.poll() is not None:
                self.reader.join(5)
                if text in self.log:
                    return
                break
            time.sleep(0.01)
        raise AssertionError(f"no {text!r} in the log:\n{self.log}")

    def stop(self, seconds=60):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(seconds * SLOW)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError("the server did not stop:\n" + self.log) from None
        self.reader.join(5)
        return status

    def __enter__(self):
        return self

    def __exit__(self, *_):
        status = self.stop()
        assert status == 0, f"exit status {status}:\n{self.log[-4000:]}"

    # ---- requests ----

    def connect(self, timeout=60):
        if self.unix:
            s = socket.socket(socket.AF_UNIX)
            s.settimeout(timeout * SLOW)
            s.connect(self.unix)
            return s
        return socket.create_connection(("127.0.0.1", self.port), timeout * SLOW)

    def head(self, method, path, headers=None, length=None):
        lines = {"Host": f"127.0.0.1:{self.port}", **(headers or {})}
        if length is not None:
            lines = {"Content-Type": "application/json", "Content-Length": length, **lines}
        return (f"{method} {path} HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in lines.items() if v is not None)
                + "\r\n").encode()

    def request(self, method, path, body=None, headers=None, timeout=60):
        """(status, headers, body) of one request on a connection of its own."""
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        with self.connect(timeout) as s:
            s.sendall(self.head(method, path, {"Connection": "close", **(headers or {})},
                                len(data) if body is not None else None) + data)
            return read_answer(s, method)

    def post(self, path, body, headers=None, timeout=60):
        status, got, data = self.request("POST", path, body, headers, timeout)
        return status, got, json.loads(data)

    def chat(self, content, **fields):
        """The first choice of a whole answer without thinking at temperature 0."""
        return self.answer(content, **fields)["choices"][0]["message"]["content"]

    def answer(self, content, **fields):
        messages = content if isinstance(content, list) else [{"role": "user", "content": content}]
        body = {"messages": messages, "temperature": 0, "chat_template_kwargs": {"enable_thinking": False}, **fields}
        status, _, v = self.post("/v1/chat/completions", body)
        assert status == 200, v
        return v

    @contextlib.contextmanager
    def stream(self, content, **fields):
        """A connection whose streamed answer has begun: its socket and a reader of lines."""
        messages = content if isinstance(content, list) else [{"role": "user", "content": content}]
        data = json.dumps({"messages": messages, "stream": True, **fields}).encode()
        s = self.connect()
        try:
            s.sendall(self.head("POST", "/v1/chat/completions", None, len(data)) + data)
            yield s
        finally:
            s.close()

    def health(self):
        return json.loads(self.request("GET", "/health")[2])

    def metrics(self, key=None):
        out = {}
        headers = {"Authorization": f"Bearer {key}"} if key else None
        for line in self.request("GET", "/metrics", None, headers)[2].decode().splitlines():
            if not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                out[name.removeprefix("lily_")] = float(value)
        return out

    def wait_idle(self, seconds=30):
        """Until no sequence is in work; the blocks that are free then."""
        end = time.time() + seconds * SLOW
        while time.time() < end:
            m = self.metrics()
            if m["answers_live"] == 0 and m["sequences_active"] == 0 and m["sequences_waiting"] == 0:
                return m
            time.sleep(0.02)
        raise AssertionError("still at work:\n" + self.log[-3000:])


def read_all(s):
    data = b""
    try:
        while piece := s.recv(1 << 16):
            data += piece
    except ConnectionResetError:
        pass
    return data


def unchunk(data):
    out = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        n = int(size.split(b";")[0], 16)
        if n == 0:
            break
        out, data = out + data[:n], data[n + 2:]
    return out


def read_answer(s, method="GET"):
    data = read_all(s)
    head, _, body = data.partition(b"\r\n\r\n")
    if head.startswith(b"HTTP/1.1 100"):
        head, _, body = body.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    assert lines[0].startswith("HTTP/1."), data[:300]
    headers = {k.lower(): v for k, _, v in (l.partition(": ") for l in lines[1:])}
    if headers.get("transfer-encoding") == "chunked":
        body = unchunk(body)
    return int(lines[0].split()[1]), headers, body


def read_stream(s):
    """An answer in chunks, read up to the end of its body on a connection that stays open."""
    data = b""
    while not data.endswith(b"0\r\n\r\n"):
        piece = s.recv(65536)
        if not piece:
            break
        data += piece

    class Done:
        def recv(self, _):
            nonlocal data
            out, data = data, b""
            return out
    return read_answer(Done())


def events(body):
    """The data of server-sent events: JSON objects, and "[DONE]"."""
    out = []
    for part in body.decode().split("\n\n"):
        for line in part.split("\n"):
            if line.startswith("data: "):
                out.append(line[6:] if line == "data: [DONE]" else json.loads(line[6:]))
    return out


def joined(chunks, field="content", index=0):
    """One field of one choice of a stream, put together."""
    return "".join(c["delta"].get(field) or "" for v in chunks if v != "[DONE]" for c in v.get("choices", [])
                   if c["index"] == index)


def no_end(vocab):
    """A bias that keeps a random model from ending by itself: its control tokens are the last 33 ids."""
    return {str(i): -100 for i in range(vocab - 33, vocab)}


def words(n, seed):
    r = random.Random(seed)
    return " ".join("".join(r.choice("abcdefghij") for _ in range(5)) for _ in range(n // 6 + 1))[:n]


def at_once(jobs):
    """Runs functions on threads of their own; their results in order."""
    results = [None] * len(jobs)
    faults = []

    def run(i):
        try:
            results[i] = jobs[i]()
        except BaseException as e:  # noqa: BLE001 - told below
            faults.append(e)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(jobs))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if faults:
        raise faults[0]
    return results
