# SPDX-License-Identifier: Apache-2.0
"""At temperature 0, and with a seed, an answer is the same to the byte alone and cold, among others that join and leave, from
the prefix cache, and behind having been sent back to the queue for want of blocks."""
import random
import threading
import time

import pytest

from serving import SLOW, Server, at_once, no_end

MODEL = "synth:micro"
SECONDS = 3


def questions():
    """Requests of every kind that could go another way: (path, body)."""
    r = random.Random(6)
    common = {"logit_bias": no_end(300), "temperature": 0}
    out = []
    for i in range(4):
        ids = [r.randrange(33, 120) for _ in range((5, 40, 130, 260)[i])]
        out.append(("/v1/completions", {**common, "prompt": ids, "max_tokens": 180}))
        out.append(("/v1/completions", {**common, "prompt": ids + [65, 66], "max_tokens": 40, "temperature": 1, "seed": i,
                                        "frequency_penalty": 1, "presence_penalty": 0.5, "repetition_penalty": 1.2}))
    text = "".join(chr(r.randrange(97, 122)) for _ in range(120))
    for budget in (5, 40):  # ids are forced into the answer, and count for the penalties
        out.append(("/v1/chat/completions", {**common, "messages": [{"role": "user", "content": text}], "max_tokens": 90,
                                             "thinking_budget": budget, "frequency_penalty": 2}))
    return out


def answer(server, path, body):
    status, _, v = server.post(path, body, timeout=120)
    assert status == 200, v
    choice = v["choices"][0]
    return choice.get("text") or choice["message"]


@pytest.fixture(scope="module")
def alone():
    with Server("--max-seqs", "1", "--no-cache", "--threads", "1", model=MODEL) as s:
        return [(path, body, answer(s, path, body)) for path, body in questions()]


def crowd(server, alone, seconds, seed):
    """Clients that ask, compare, hang up; how many answers were compared."""
    faults, n, end = [], [0], time.time() + seconds

    def client(i):
        r = random.Random(seed + i)
        try:
            while time.time() < end and not faults:
                path, body, wanted = r.choice(alone)
                if r.random() < 0.3:
                    with server.stream("x" * r.randint(1, 300), max_tokens=200, logit_bias=no_end(300)) as s:
                        time.sleep(r.random() * 0.05)
                        s.recv(r.randint(1, 4000))
                    continue
                assert answer(server, path, body) == wanted, (path, body)
                n[0] += 1
        except BaseException as e:  # noqa: BLE001 - told below
            faults.append(e)
    threads = [threading.Thread(target=client, args=(i,)) for i in range(16)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if faults:
        raise faults[0]
    return n[0]


# Beside answers prompts go through the layers in several steps, but for the last one.
@pytest.mark.parametrize("options", [("--no-cache",), ("--cache-exact", "--cache-slots", "12"), ("--no-cache", "--mixed-ms", "60000")])
def test_C68_an_answer_is_the_same_among_16_that_join_leave_and_are_sent_back(alone, options):
    seed = random.randrange(1 << 30)
    print("seed", seed)
    with Server("--max-seqs", "16", "--ctx", "640", "--max-queue", "100", "--threads", "1", *options, model=MODEL) as s:
        n = crowd(s, alone, SECONDS * SLOW, seed)
        m = s.wait_idle(60)
        print(f"{n} answers, {m['preempted_total']:.0f} sent back, {m['cached_tokens_total']:.0f} tokens from the cache")
        assert n > 4 and m["preempted_total"] > 0
        assert m["kv_blocks_free"] <= m["kv_blocks"] and m["cache_decode_made_total"] == 0
        assert (m["cached_tokens_total"] > 0) == ("--no-cache" not in options)


def test_cold_and_from_prefill_made_snapshots(alone):
    with Server("--max-seqs", "4", "--cache-exact", "--threads", "1", model=MODEL) as s:
        for turn in range(2):
            for path, body, wanted in alone:
                assert answer(s, path, body) == wanted
        assert s.metrics()["cached_tokens_total"] > 1000


def test_the_log_tells_who_was_sent_back():
    body = {"prompt": [65] * 60, "max_tokens": 180, "temperature": 0, "logit_bias": no_end(300)}
    with Server("--max-seqs", "3", "--ctx", "320", "--no-cache", "--threads", "1", model=MODEL) as s:
        wanted = answer(s, "/v1/completions", body)
        assert at_once([lambda: answer(s, "/v1/completions", body)] * 3) == [wanted] * 3
        n = s.metrics()["preempted_total"]
        s.wait_for(" preempted=", times=4)
        told = [int(line.split(" preempted=")[1].split()[0]) for line in s.lines if " preempted=" in line]
        assert n > 0 and told[0] == 0 and sum(told) == n
