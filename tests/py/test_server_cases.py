# SPDX-License-Identifier: Apache-2.0
"""What went wrong in other servers, by its number, on the small model or a random one."""
import json
import struct
import time

import pytest

from conftest import ROOT, run_lily
from serving import BACKEND, NO_THINK, SLOW, TOOLS, WEATHER, Server, at_once, events, joined, no_end, read_stream, words

RANDOM = "synth:micro"


@pytest.fixture(scope="module")
def server():
    with Server("--max-seqs", "8") as s:
        yield s


@pytest.fixture(scope="module")
def long_server():
    with Server("--max-seqs", "4", "--ctx", "65536", model=RANDOM) as s:
        yield s


def cached(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def wait_gone(server, n, seconds=20):
    end = time.time() + seconds * SLOW
    while server.metrics()["requests_gone_total"] < n and time.time() < end:
        time.sleep(0.02)
    assert server.metrics()["requests_gone_total"] >= n


def test_C2_the_size_of_prompt_pieces_never_changes_the_answer():
    """Pieces alone and beside other answers, with and without snapshots in the middle."""
    ids = [33 + (i * 7 + i // 9) % 90 for i in range(700)]
    body = {"prompt": ids, "max_tokens": 24, "temperature": 0, "logit_bias": no_end(300)}
    said = set()
    for chunk in (1, 7, 64, 128, 512, 700, 2048):
        with Server("--chunk", chunk, "--mixed", chunk, "--max-seqs", "4", "--threads", "1", model=RANDOM) as s:
            busy = {**body, "prompt": [65], "max_tokens": 400}
            done = at_once([lambda b=b: s.post("/v1/completions", b) for b in (busy, body, busy)])
            said |= {done[1][2]["choices"][0]["text"], s.post("/v1/completions", body)[2]["choices"][0]["text"]}
    assert len(said) == 1


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 63, 64, 65])
def test_C6_prompts_shorter_than_the_convolution_work(n):
    """Against the reference backend (on a card, whose roundings may choose otherwise, against itself alone): the same ids, the same text."""
    ids = ",".join(str(65 + i) for i in range(n))
    wanted = run_lily("generate", "-m", RANDOM, "--ids", ids, "--max-tokens", 8, "--temp", 0, "--ignore-eos", "--json", "--backend", BACKEND or "ref")
    with Server("--threads", "1", model=RANDOM) as s:
        _, _, v = s.post("/v1/completions", {"prompt": [65 + i for i in range(n)], "max_tokens": 8, "temperature": 0, "ignore_eos": True})
        assert v["usage"]["prompt_tokens"] == n and v["usage"]["completion_tokens"] == 8
        assert v["choices"][0]["text"] == json.loads(wanted.text)["content"]


def test_C4_a_cancelled_request_leaves_nothing_behind(server):
    first = server.chat("What is 2+2?")
    for i in range(4):
        gone = server.metrics()["requests_gone_total"]
        with server.stream("{\n \"a\": [1,\n 2]\n}\n" * 20 + str(i), max_tokens=500) as s:
            s.recv(100 * (i + 1))
        wait_gone(server, gone + 1)
        assert server.chat("What is 2+2?") == first
    server.wait_idle()


def poisoned(folder):
    """A random model with one token whose embedding is so large that its rows overflow."""
    assert run_lily("synth", "--shape", "tiny", "--layers", "4", "--force", "-o", folder).status == 0
    path = next(f for f in folder.glob("*.safetensors") if b"embed_tokens.scales" in f.read_bytes())
    data = bytearray(path.read_bytes())
    (n,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + n])
    name = next(k for k in header if k.endswith("embed_tokens.scales"))
    off, shape = header[name]["data_offsets"][0], header[name]["shape"]
    token = 200
    for i in range(shape[1]):
        at = 8 + n + off + 2 * (token * shape[1] + i)
        data[at:at + 2] = b"\x7f\x7f"  # the largest bf16, 3.4e38
    path.write_bytes(data)
    return token


def test_C4_a_request_that_ends_in_NaN_leaves_nothing_behind(tmp_path):
    token = poisoned(tmp_path)
    with Server("--max-seqs", "4", model=tmp_path) as s:
        good = [40, 41, 42]

        def complete(ids, **fields):
            return s.post("/v1/completions", {"prompt": ids, "max_tokens": 8, "temperature": 0, **fields})
        first = complete(good)[2]["choices"][0]["text"]
        for _ in range(3):
            status, _, v = complete(good + [token] + good)
            assert status == 500 and v["error"]["code"] == "numeric_error", v
            assert "NaN or infinity" in v["error"]["message"]
            assert complete(good)[2]["choices"][0]["text"] == first
        done = at_once([lambda i=i: complete(good + [token] if i % 2 else good) for i in range(8)])
        assert [d[0] for d in done] == [200, 500] * 4
        assert {d[2]["choices"][0]["text"] for d in done if d[0] == 200} == {first}
        status, _, body = s.request("POST", "/v1/completions", {"prompt": good + [token], "stream": True})
        assert status == 200 and events(body)[-1] == "[DONE]" and events(body)[-2]["error"]["code"] == "numeric_error"
        m = s.wait_idle()
        assert m["requests_failed_total"] == 8


def test_C12_a_late_system_message_is_accepted(server):
    history = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"},
               {"role": "system", "content": "be short"}, {"role": "user", "content": "What is 2+2?"}]
    assert server.answer(history)["choices"][0]["message"]["content"]
    _, _, ids = server.post("/tokenize", {"messages": history})
    text = server.post("/detokenize", {"tokens": ids["tokens"]})[2]["content"]
    assert text.index("hello") < text.index("be short") < text.index("2+2")
    first = [{"role": "system", "content": "one"}, {"role": "developer", "content": "two"}, {"role": "user", "content": "x"}]
    text = server.post("/detokenize", {"tokens": server.post("/tokenize", {"messages": first})[2]["tokens"]})[2]["content"]
    assert text.count("<|im_start|>system") == 1 and text.index("one") < text.index("two")


def test_C14_enable_thinking_false_is_honoured(server):
    m = server.answer("What is 2+2?", max_tokens=16)["choices"][0]["message"]
    assert "4" in m["content"] and "reasoning_content" not in m
    with server.stream("What is 2+2?", max_tokens=16, temperature=0, **NO_THINK) as s:
        chunks = events(read_stream(s)[2])
    assert "4" in joined(chunks) and joined(chunks, "reasoning_content") == ""


def test_C16_text_and_a_call_both_arrive(server):
    m = server.answer("Please explain, then look up the weather in Paris.", tools=TOOLS)["choices"][0]
    assert m["finish_reason"] in ("tool_calls", "stop") and m["message"]["role"] == "assistant"
    assert (m["finish_reason"] == "tool_calls") == bool(m["message"].get("tool_calls"))


def test_C24_a_call_that_cannot_be_forced_is_refused_and_reason_and_array_agree(server):
    for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
        status, _, v = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}],
                                                            "tools": TOOLS, "tool_choice": choice})
        assert status == 400 and v["error"]["param"] == "tool_choice"
    for text in ("Hello", "What is the weather in Paris?", "What is the weather in Rome?"):
        for stop_at in (5, 12, 200):  # a call cut by the limit is no call
            c = server.answer(text, tools=TOOLS, max_tokens=stop_at)["choices"][0]
            assert (c["finish_reason"] == "tool_calls") == bool(c["message"].get("tool_calls")), c
            with server.stream(text, tools=TOOLS, temperature=0, max_tokens=stop_at, **NO_THINK) as s:
                chunks = [v for v in events(read_stream(s)[2]) if v != "[DONE]"]
            finish = [c["finish_reason"] for v in chunks for c in v["choices"] if c["finish_reason"]]
            calls = {t["index"]: "" for v in chunks for k in v["choices"] for t in k["delta"].get("tool_calls", [])}
            for v in chunks:
                for k in v["choices"]:
                    for t in k["delta"].get("tool_calls", []):
                        calls[t["index"]] += t["function"].get("arguments", "")
            assert finish == [c["finish_reason"]]
            if finish == ["tool_calls"]:
                assert [json.loads(a) for a in calls.values()]


def test_C26_a_tool_request_needs_no_flag(server):
    v = server.answer(WEATHER, tools=TOOLS)
    call = v["choices"][0]["message"]["tool_calls"][0]
    assert call["function"]["name"] == "get_weather" and json.loads(call["function"]["arguments"])["city"]


def test_C28_bytes_arrive_at_least_every_two_seconds():
    # The reference backend needs many seconds for this prompt.
    with Server("--backend", "ref", "--threads", "1", "--chunk", "64", model="synth:tiny,layers=4") as s:
        gaps, last, data = [], time.time(), b""
        with s.stream(words(3000, 1), max_tokens=2) as c:
            while b"[DONE]" not in data:
                piece = c.recv(65536)
                assert piece, data
                gaps.append(time.time() - last)
                last, data = time.time(), data + piece
        assert max(gaps) < 2, gaps
        assert b": reading, " in data and data.count(b"\n: ") >= 2


def test_C28_call_arguments_stream_as_they_are_made(server):
    with server.stream("What is the weather in Paris?", tools=TOOLS, temperature=0, **NO_THINK) as s:
        chunks = [v for v in events(read_stream(s)[2]) if v != "[DONE]"]
    pieces = [t["function"].get("arguments") for v in chunks for c in v["choices"]
              for t in c["delta"].get("tool_calls", [])]
    assert len([p for p in pieces if p]) > 1
    assert json.loads("".join(pieces)) == {"city": "Paris"}


def test_C30_usage_comes_last_with_no_choices_and_only_when_asked(server):
    for ask in (True, False, None):
        extra = {} if ask is None else {"stream_options": {"include_usage": ask}}
        with server.stream("hi", max_tokens=3, **extra) as s:
            chunks = events(read_stream(s)[2])
        assert chunks[-1] == "[DONE]" and chunks.count("[DONE]") == 1
        if ask:
            assert chunks[-2]["choices"] == [] and chunks[-2]["usage"]["completion_tokens"] == 3
            assert all(c["usage"] is None for c in chunks[:-2])
        else:
            assert all("usage" not in c and len(c["choices"]) == 1 for c in chunks[:-1])


def test_C32_stop_strings_are_held_back_and_never_sent_twice(server):
    full = server.chat("Tell me a story.", max_tokens=60)
    assert len(full) > 40
    for at in (7, 12, 25):
        for n in (1, 3, 9):
            stop = full[at:at + n]
            wanted = full[:full.index(stop)]
            c = server.answer("Tell me a story.", max_tokens=60, stop=[stop, "never there"])["choices"][0]
            assert c["message"]["content"] == wanted and c["finish_reason"] == "stop"
            with server.stream("Tell me a story.", max_tokens=60, temperature=0, stop=stop, **NO_THINK) as s:
                assert joined(events(read_stream(s)[2])) == wanted
    unmatched = full[5:9] + "\x01"
    with server.stream("Tell me a story.", max_tokens=60, temperature=0, stop=unmatched, **NO_THINK) as s:
        assert joined(events(read_stream(s)[2])) == full


@pytest.mark.parametrize("fields", [{"reasoning_budget": 8}, {"thinking_budget": 8}, {"thinking_budget": 0}])
def test_C34_a_spent_thinking_budget_still_gives_an_answer(server, fields):
    body = {"messages": [{"role": "user", "content": "How many primes are below 1000?"}], "max_tokens": 256,
            "temperature": 0, **fields}
    _, _, v = server.post("/v1/chat/completions", body)
    m = v["choices"][0]["message"]
    assert m["content"]
    n = v["usage"]["completion_tokens_details"]["reasoning_tokens"]
    assert n <= next(iter(fields.values())) + 4, "the closing tag is counted, no more"


def test_C34_the_server_has_a_budget_of_its_own():
    with Server("--thinking-budget", "6") as s:
        for fields in ({}, {"thinking_budget": 500}, {"reasoning_effort": "high"}):
            _, _, v = s.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "What is 12 + 30?"}],
                                                      "temperature": 0, "max_tokens": 200, **fields})
            assert v["usage"]["completion_tokens_details"]["reasoning_tokens"] <= 10
            assert v["choices"][0]["message"]["content"]


def test_C36_the_forced_close_never_leaks_into_content(server):
    for budget in range(0, 24, 3):
        with server.stream("What is 17 + 25?", temperature=0, thinking_budget=budget, max_tokens=200) as s:
            chunks = events(read_stream(s)[2])
        for text in (joined(chunks), joined(chunks, "reasoning_content")):
            assert "think>" not in text


def test_C38_reasoning_effort(server):
    _, _, v = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "title for: cats"}],
                                                   "reasoning_effort": "none", "max_tokens": 40})
    assert "reasoning_content" not in v["choices"][0]["message"]
    for effort in ("minimal", "low", "medium", "high"):
        assert server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4,
                                                    "reasoning_effort": effort})[0] == 200


def test_C44_a_second_turn_reads_only_what_is_new(long_server):
    s = long_server
    history = [{"role": "system", "content": words(8000, 2)}, {"role": "user", "content": "Hello, who are you?"}]
    first = s.answer(history, max_tokens=20)
    history += [{"role": "assistant", "content": first["choices"][0]["message"]["content"]},
                {"role": "user", "content": "And what next?"}]
    second = s.answer(history, max_tokens=5)
    assert cached(second) >= 0.95 * second["usage"]["prompt_tokens"], second["usage"]


def test_C44_a_replayed_agent_conversation_caches_95_percent_of_what_it_could(long_server):
    s = long_server
    tool = [{"type": "function", "function": {"name": "run", "description": words(400, 9), "parameters": {
        "type": "object", "properties": {"c": {"type": "string"}}}}}]
    history = [{"role": "system", "content": words(3000, 5)}, {"role": "user", "content": words(200, 6)}]
    had = n_cached = ideal = 0
    for i in range(30):
        v = s.answer(history, tools=tool, max_tokens=1)
        ideal += had // 64 * 64 if i else 0  # a cache holds whole blocks of what was read before
        n_cached += cached(v)
        had = v["usage"]["prompt_tokens"] - 4  # the answer's opening is not in the next prompt
        call = {"id": f"c{i}", "type": "function", "function": {"name": "run", "arguments": json.dumps({"c": words(80, i)})}}
        history += [{"role": "assistant", "content": None, "tool_calls": [call]},
                    {"role": "tool", "tool_call_id": f"c{i}", "content": words(600, 100 + i)}]
    assert n_cached >= 0.95 * ideal, (n_cached, ideal)


def test_C46_a_long_document_with_another_question_is_read_once(long_server):
    doc = words(12000, 3)
    a = long_server.answer(doc + "\nQuestion A?", max_tokens=2)
    b = long_server.answer(doc + "\nAnother question, B?", max_tokens=2)
    assert cached(b) >= a["usage"]["prompt_tokens"] - 2048 - 128 and cached(b) > 0


def test_C48_the_same_prompt_twice_hits_and_a_miss_has_its_reason(long_server):
    prompt = words(12000, 4)
    first = long_server.answer(prompt, max_tokens=1)
    again = long_server.answer(prompt, max_tokens=1)
    n = first["usage"]["prompt_tokens"]
    assert cached(first) < 200 and cached(again) >= n - 128
    assert again["choices"] == first["choices"], "cold and cached answers are the same"
    long_server.wait_for(f"prompt={n} ", times=2)
    lines = [l for l in long_server.lines if f"prompt={n} " in l]
    assert "cache=unknown" in lines[0] or "cache=diverged" in lines[0]
    assert "cache=whole" in lines[1]
    m = long_server.metrics()
    assert m['cache_lookups_total{miss="whole"}'] >= 1


def test_C50_side_requests_do_not_evict_a_long_conversation():
    with Server("--ctx", "32768", "--cache-slots", "8", model=RANDOM) as s:
        history = [{"role": "user", "content": words(10000, 7)}]
        first = s.answer(history, max_tokens=4)
        for i in range(12):
            s.answer(f"title for: {words(200, i)}", max_tokens=4)
            s.answer(f"summary of: {words(300, 50 + i)}", max_tokens=4)
        history += [{"role": "assistant", "content": first["choices"][0]["message"]["content"]},
                    {"role": "user", "content": "go on"}]
        v = s.answer(history, max_tokens=2)
        assert cached(v) >= 0.9 * v["usage"]["prompt_tokens"], v["usage"]


def test_C56_old_reasoning_is_dropped_and_a_too_long_prompt_is_refused_at_once(long_server):
    history = []
    for i in range(20):
        history += [{"role": "user", "content": f"question {i}"},
                    {"role": "assistant", "content": f"answer {i}", "reasoning_content": words(10000, i)}]
    history.append({"role": "user", "content": "and now?"})
    v = long_server.answer(history, max_tokens=2)
    assert v["usage"]["prompt_tokens"] < 3000
    kept = {"chat_template_kwargs": {"enable_thinking": False, "preserve_thinking": True}}
    start = time.time()
    status, _, v = long_server.post("/v1/chat/completions", {"messages": history, "stream": True, **kept})
    assert status == 400 and v["error"]["code"] == "context_length_exceeded" and time.time() - start < 5 * SLOW
    assert "65536" in v["error"]["message"] and any(w.isdigit() and int(w) > 190000 for w in v["error"]["message"].split())


def ids_of(server, n):
    return server.post("/tokenize", {"content": "a b c d e f g " * n, "parse_special": False})[2]["tokens"][:n]


def test_C58_the_answer_ends_with_length_at_the_context(server):
    prompt = ids_of(server, 2048 - 10)
    v = server.post("/v1/completions", {"prompt": prompt, "max_tokens": 100, "temperature": 0})[2]
    assert v["choices"][0]["finish_reason"] == "length" or v["usage"]["completion_tokens"] < 10
    assert v["usage"]["completion_tokens"] <= 10


def test_C58_exactly_the_rest_of_the_context_is_used():
    with Server("--ctx", "256", model=RANDOM) as s:
        v = s.post("/v1/completions", {"prompt": [65] * 246, "max_tokens": 100, "temperature": 0,
                                       "logit_bias": no_end(300)})[2]
        assert v["usage"]["completion_tokens"] == 10 and v["choices"][0]["finish_reason"] == "length"


def test_C80_a_prompt_over_the_context_is_refused_with_both_numbers(server):
    limit = server.post("/tokenize", {"content": "x"})[2]["max_model_len"]
    models = json.loads(server.request("GET", "/v1/models")[2])
    assert models["data"][0]["context_length"] == limit == 2048
    for n in (limit, limit + 1, 3 * limit):
        status, _, v = server.post("/v1/completions", {"prompt": ids_of(server, n), "max_tokens": 1})
        assert status == 400 and v["error"]["code"] == "context_length_exceeded"
        assert str(n) in v["error"]["message"] and str(limit) in v["error"]["message"]


def test_C60_agents_in_little_memory_are_never_refused():
    """Two agents of 30 turns each in a pool that holds one of them: prefixes are evicted, requests go on."""
    with Server("--ctx", "2048", "--cache-slots", "6", "--max-seqs", "2", "--threads", "1", model=RANDOM) as s:
        histories = [[{"role": "system", "content": words(100, i)}] for i in range(2)]
        sizes = []
        for turn in range(30):
            for i, history in enumerate(histories):
                history += [{"role": "user", "content": words(20, 100 * i + turn)}]
                v = s.answer(history, max_tokens=8)  # 200, or it would have said so
                history += [{"role": "assistant", "content": v["choices"][0]["message"]["content"] or "yes"}]
            m = s.metrics()
            sizes.append(m["memory_resident_bytes"])
            assert m["kv_blocks_free"] >= 0 and m["cache_snapshots"] <= 6
        assert m["cache_evicted_total"] > 0 and m["requests_failed_total"] == 0
        assert v["usage"]["prompt_tokens"] > 1100
    if BACKEND == "cuda":
        return  # the driver's own memory on the host is nobody's plan
    assert sizes[-1] < m["memory_planned_bytes"] + m["memory_program_bytes"] + (4 << 20)


def test_C82_the_quick_start_of_the_openai_package_works(server, openai):
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="x", max_retries=0)
    stream = client.chat.completions.create(model="gpt-5", messages=[{"role": "user", "content": "Say hello."}], stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 8])
def test_C68_rows_of_a_batch_equal_their_single_answers(server, n):
    prompts = ["Hi.", "What is 3+4?", "Name a colour.", "Tell me a story about rain.", "What is the capital of Italy?",
               "Count to five.", "Say hello in German.", "What is 9-2?"][:n]
    alone = [server.chat(p, max_tokens=32) for p in prompts]
    assert at_once([lambda p=p: server.chat(p, max_tokens=32) for p in prompts]) == alone


def test_C70_bursts_of_eight_users_have_no_junk(server):
    prompts = [f"What is {i} + 1?" for i in range(8)]
    alone = [server.chat(p, max_tokens=16) for p in prompts]
    for _ in range(6):
        assert at_once([lambda p=p: server.chat(p, max_tokens=16) for p in prompts]) == alone


def test_C78_tool_output_as_a_list_of_parts(server):
    call = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": "{\"city\":\"Paris\"}"}}
    for content in ("ok", [{"type": "text", "text": "ok"}], [{"type": "text", "text": "o"}, {"type": "text", "text": "k"}]):
        history = WEATHER + [{"role": "assistant", "content": None, "tool_calls": [call]},
                             {"role": "tool", "tool_call_id": "c1", "content": content}]
        assert server.answer(history, tools=TOOLS, max_tokens=8)["usage"]["prompt_tokens"] > 20


@pytest.fixture(scope="module")
def hurried_server():
    with Server("--request-timeout", "1", "--backend", "ref", "--threads", "1", model="synth:tiny,layers=4") as s:
        yield s


def test_C84_errors_before_and_inside_a_stream(hurried_server):
    s = hurried_server
    with s.stream("hi", max_tokens=5000, temperature=0, logit_bias=no_end(512)) as c:
        status, _, body = read_stream(c)
    text = body.decode()
    assert status == 200 and "event: error\ndata: {\"error\":" in text and text.endswith("data: [DONE]\n\n")
    error = events(body)[-2]["error"]
    assert error["type"] == "server_error" and "limit of 1 s" in error["message"]
    assert not any(c.get("finish_reason") for v in events(body)[:-2] for c in v["choices"])
    status, _, v = s.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5000,
                                                   "logit_bias": no_end(512)})
    assert status == 504 and "limit of 1 s" in v["error"]["message"]


def test_C84_the_openai_package_raises_errors_before_and_inside_a_stream(hurried_server, openai):
    client = openai.OpenAI(base_url=hurried_server.url + "/v1", api_key="x", max_retries=0)
    with pytest.raises(openai.BadRequestError) as e:
        client.chat.completions.create(model="x", messages=[{"role": "user", "content": "hi"}], temperature=9, stream=True)
    assert e.value.param == "temperature"
    with pytest.raises(openai.APIError) as e:
        for _ in client.chat.completions.create(model="x", messages=[{"role": "user", "content": "hi"}],
                                                max_tokens=5000, stream=True, logit_bias=no_end(512)):
            pass
    assert "limit of 1 s" in e.value.message


@pytest.mark.parametrize("name, path, body", [
    ("chat", "/v1/chat/completions", {"messages": [{"role": "user", "content": "What is 2+2?"}], "temperature": 0}),
    ("chat_tools", "/v1/chat/completions", {"messages": WEATHER, "tools": TOOLS, "temperature": 0, **NO_THINK}),
    ("completion", "/v1/completions", {"prompt": "One two", "max_tokens": 3, "temperature": 0, "logprobs": 1}),
])
def test_C92_golden_shape_of_whole_and_streamed_answers(server, name, path, body):
    folder = ROOT / "tests/data/wire"
    _, _, whole = server.post(path, body)
    _, _, data = server.request("POST", path, {**body, "stream": True, "stream_options": {"include_usage": True}})
    streamed = events(data)
    for kind, v in (("whole", whole), ("stream", streamed)):
        assert shape(v) == json.loads((folder / f"{name}_{kind}.shape.json").read_text()), kind


def shape(v):
    """The names and types of a JSON value; equal entries of a list that follow each other count once.  Words of the
    model that are names (the completion's top_logprobs) count as TOKEN."""
    if isinstance(v, dict):
        if v and all(isinstance(x, float) for x in v.values()):
            return {"TOKEN": "float"}
        return {k: shape(x) for k, x in v.items()}
    if isinstance(v, list):
        out = []
        for x in map(shape, v):
            if x not in out:
                out.append(x)
        return out
    if isinstance(v, str) and v in ("stop", "length", "tool_calls", "assistant", "function", "[DONE]", "chat.completion",
                                    "chat.completion.chunk", "text_completion", "mini"):
        return v
    return None if v is None else type(v).__name__
