# SPDX-License-Identifier: Apache-2.0
"""A short mixed load: nothing but 200 and 429, nothing lost, nothing left. `tools/check.py` runs it on the sanitized
programs too."""
import json
import os
import random
import threading
import time

from conftest import LILY
from serving import SLOW, Server, events, no_end, read_answer, read_stream

IS_LONG = bool(os.environ.get("LILY_LONG"))
SECONDS = int(os.environ.get("LILY_LOAD_SECONDS", 60 if IS_LONG else 4))
CLIENTS = int(os.environ.get("LILY_LOAD_CLIENTS", 200 if IS_LONG else 24))


def one(server, r):
    """One random request; its status, or None for one that was given up."""
    kind = r.choice(["chat", "chat", "stream", "stream", "hang up", "completion", "small", "bad", "n"])
    fields = {"messages": [{"role": "user", "content": "x" * r.randint(1, 400)}], "max_tokens": r.randint(1, 40),
              "temperature": r.choice([0, 1]), "seed": r.randint(0, 9), "logit_bias": no_end(300)}
    if kind == "chat":
        return server.request("POST", "/v1/chat/completions", fields)[0]
    if kind == "n":
        return server.request("POST", "/v1/chat/completions", {**fields, "n": 3})[0]
    if kind == "completion":
        return server.request("POST", "/v1/completions", {"prompt": [65] * r.randint(1, 200), "max_tokens": 5})[0]
    if kind == "small":
        return server.request("GET", r.choice(["/health", "/metrics", "/v1/models", "/"]))[0]
    if kind == "bad":
        status = server.request("POST", "/v1/chat/completions", {**fields, "temperature": 7})[0]
        assert status == 400
        return 200
    body = json.dumps({**fields, "stream": True, "max_tokens": 400 if kind == "hang up" else fields["max_tokens"]}).encode()
    with server.connect() as s:
        s.sendall(server.head("POST", "/v1/chat/completions", None, len(body)) + body)
        if kind == "hang up":
            if r.random() < 0.5:
                s.recv(r.randint(1, 3000))
            return None
        status, _, data = read_answer_or_stream(s)
        if status == 200:
            assert events(data)[-1] == "[DONE]"
        return status


def read_answer_or_stream(s):
    head = b""
    while b"\r\n\r\n" not in head:
        piece = s.recv(1)
        assert piece, head
        head += piece

    class Rest:
        """The head again, then the rest of the connection."""
        first = head

        def recv(self, n):
            out, self.first = self.first, b""
            return out or s.recv(n)
    if b"chunked" in head:
        return read_stream(Rest())
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    body = b""
    while len(body) < length:
        body += s.recv(length - len(body))

    class Whole:
        data = head + body

        def recv(self, _):
            out, self.data = self.data, b""
            return out
    return read_answer(Whole())


def resident(server):
    with open(f"/proc/{server.process.pid}/status") as f:
        return next(int(l.split()[1]) * 1024 for l in f if l.startswith("VmRSS"))


def test_mixed_load_with_disconnects():
    seed = random.randrange(1 << 30)
    print("seed", seed)
    with Server("--max-seqs", "8", "--max-queue", "400", "--threads", "2", model="synth:micro") as s:
        before = s.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "temperature": 0,
                                                 "max_tokens": 20})[2]["choices"]
        statuses, faults = {}, []
        end = time.time() + SECONDS

        def client(i):
            r = random.Random(seed + i)
            try:
                while time.time() < end:
                    status = one(s, r)
                    statuses[status] = statuses.get(status, 0) + 1
            except BaseException as e:  # noqa: BLE001 - told below
                faults.append(e)
        threads = [threading.Thread(target=client, args=(i,)) for i in range(CLIENTS)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        if faults:
            raise faults[0]
        assert set(statuses) <= {200, 429, None} and statuses[200] > 10, statuses
        m = s.wait_idle(60)
        planned = m["memory_planned_bytes"] + m["memory_program_bytes"]
        print(f"load statuses {statuses}, resident {resident(s) / 1e6:.1f} MB; planned {m['memory_planned_bytes'] / 1e6:.1f} MB, "
              f"the program itself {m['memory_program_bytes'] / 1e6:.1f} MB")
        assert m["requests_failed_total"] == 0
        after = s.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "temperature": 0,
                                                "max_tokens": 20})[2]["choices"]
        assert after == before
        assert m["cache_snapshots"] <= m["cache_slots"]
        if "san" not in LILY:  # sanitizers keep freed memory
            assert resident(s) < 1.02 * planned
            assert m["memory_resident_bytes"] < 1.02 * planned and m["memory_peak_bytes"] < 1.02 * planned
