# SPDX-License-Identifier: Apache-2.0
"""Every endpoint through the current `openai` client, streamed and whole, and what it cannot say by plain HTTP. Without that
package the second part runs."""
import json

import pytest

from serving import NO_THINK, TOOLS, WEATHER, Server, at_once, events, joined, read_stream


@pytest.fixture(scope="module")
def server():
    with Server("--max-seqs", "16", "--threads", "2") as s:
        yield s


@pytest.fixture(scope="module")
def client(server, openai):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none needed", max_retries=0)


def ask(client, text="What is 2+2?", thinking=False, **fields):
    return client.chat.completions.create(
        model="mini", messages=[{"role": "user", "content": text}], temperature=0,
        extra_body={**({} if thinking else NO_THINK), **fields.pop("extra_body", {})}, **fields)


# ---- chat ----

def test_chat_whole(client):
    r = ask(client)
    c = r.choices[0]
    assert c.message.role == "assistant" and "4" in c.message.content and c.finish_reason == "stop"
    assert r.object == "chat.completion" and r.model == "mini" and r.id.startswith("chatcmpl-")
    assert r.usage.total_tokens == r.usage.prompt_tokens + r.usage.completion_tokens
    assert r.usage.completion_tokens_details.reasoning_tokens == 0


def test_chat_stream_equals_whole(client):
    whole = ask(client, thinking=True)
    content = reasoning = ""
    finish = None
    for chunk in ask(client, thinking=True, stream=True):
        assert chunk.object == "chat.completion.chunk" and chunk.usage is None
        d = chunk.choices[0].delta
        content += d.content or ""
        reasoning += getattr(d, "reasoning_content", None) or ""
        finish = chunk.choices[0].finish_reason or finish
    m = whole.choices[0].message
    assert (content, reasoning, finish) == (m.content, m.reasoning_content, whole.choices[0].finish_reason)
    assert reasoning and m.reasoning == m.reasoning_content
    assert whole.usage.completion_tokens_details.reasoning_tokens > 0


def test_chat_limits_and_defaults(client):
    r = ask(client, "Tell me a story.", max_tokens=3)
    assert r.choices[0].finish_reason == "length" and r.usage.completion_tokens == 3
    r = ask(client, "Tell me a story.", max_completion_tokens=2)
    assert r.usage.completion_tokens == 2


def test_chat_seed_repeats_and_differs(client):
    def say(seed):
        # A history as it never saw one, and penalties: the small model is sure of everything else.
        messages = [{"role": "user", "content": "Tell me a story."}, {"role": "assistant", "content": "zq"}]
        return client.chat.completions.create(model="mini", messages=messages, temperature=2, top_p=1, seed=seed, max_tokens=24,
                                              extra_body={**NO_THINK, "top_k": 0, "repetition_penalty": 1.5,
                                                          "frequency_penalty": 2}).choices[0].message.content
    assert say(7) == say(7)
    assert len({say(s) for s in range(6)}) > 1


def test_chat_n_choices_share_their_prompt(server, client):
    before = server.metrics()
    long = "Tell me a story about " + ", ".join(f"a dog called number {i}" for i in range(60)) + "."
    r = client.chat.completions.create(model="mini", messages=[{"role": "user", "content": long}], n=4, temperature=1.2,
                                       seed=3, max_tokens=16, extra_body={**NO_THINK, "top_k": 0, "top_p": 1})
    assert [c.index for c in r.choices] == [0, 1, 2, 3]
    assert len({c.message.content for c in r.choices}) > 1
    after = server.metrics()
    read = (after["prompt_tokens_total"] - before["prompt_tokens_total"]
            - after["cached_tokens_total"] + before["cached_tokens_total"])
    assert read < r.usage.prompt_tokens + 3 * 128, "each choice read the prompt anew"
    one = client.chat.completions.create(model="mini", messages=[{"role": "user", "content": long}], temperature=1.2,
                                         seed=4, max_tokens=16, extra_body={**NO_THINK, "top_k": 0, "top_p": 1})
    assert one.choices[0].message.content == r.choices[1].message.content, "choice i is drawn with seed + i"


def test_chat_n_choices_streamed(client):
    texts = {}
    for chunk in ask(client, "Tell me a story.", stream=True, n=3, max_tokens=12,
                     stream_options={"include_usage": True}):
        for c in chunk.choices:
            texts[c.index] = texts.get(c.index, "") + (c.delta.content or "")
        last = chunk
    assert sorted(texts) == [0, 1, 2] and len(set(texts.values())) == 1
    assert last.choices == [] and last.usage.completion_tokens == 36


def test_chat_logprobs(client):
    r = ask(client, logprobs=True, top_logprobs=3)
    entries = r.choices[0].logprobs.content
    assert len(entries) >= r.usage.completion_tokens - 1
    for e in entries:
        assert len(e.top_logprobs) == 3 and e.top_logprobs[0].logprob >= e.top_logprobs[1].logprob
        assert e.token == e.top_logprobs[0].token, "temperature 0 takes the most likely"
        assert e.bytes == list(e.token.encode())
    streamed = [e for c in ask(client, logprobs=True, top_logprobs=3, stream=True) for k in c.choices
                if k.logprobs for e in k.logprobs.content]
    assert streamed == entries


def test_chat_logit_bias_forbids(client):
    plain = ask(client).choices[0].message.content
    entries = ask(client, logprobs=True).choices[0].logprobs.content
    first = entries[0].token
    ids = client.post("../tokenize", cast_to=object, body={"content": first, "parse_special": False})["tokens"]
    assert ask(client, logit_bias={str(ids[0]): -100}).choices[0].message.content != plain


def test_chat_every_message_form(client):
    call = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": "{\"city\": \"Paris\"}"}}
    for messages in (
            [{"role": "system", "content": "Be short."}, {"role": "user", "content": [{"type": "text", "text": "hi"}]}],
            [{"role": "developer", "content": "Be short."}, {"role": "user", "content": "hi", "name": "ann"}],
            WEATHER + [{"role": "assistant", "content": None, "tool_calls": [call]},
                       {"role": "tool", "tool_call_id": "c1", "content": "sunny"}],
            WEATHER + [{"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [call]},
                       {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "sunny"}]}],
            [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello", "reasoning": "greet"},
             {"role": "user", "content": "bye"}],
            [{"role": "assistant", "content": "Good day."}]):
        r = client.chat.completions.create(model="mini", messages=messages, max_tokens=4, tools=TOOLS,
                                           extra_body=NO_THINK)
        assert r.usage.prompt_tokens > 5


def test_chat_tools_whole_and_streamed(client):
    r = client.chat.completions.create(model="mini", messages=WEATHER, tools=TOOLS, temperature=0, extra_body=NO_THINK)
    c = r.choices[0]
    assert c.finish_reason == "tool_calls" and len(c.message.tool_calls) == 1
    assert c.message.tool_calls[0].function.name == "get_weather"
    assert json.loads(c.message.tool_calls[0].function.arguments) == {"city": "Paris"}
    name = arguments = ""
    ids, finish = set(), None
    for chunk in client.chat.completions.create(model="mini", messages=WEATHER, tools=TOOLS, temperature=0, stream=True,
                                                extra_body=NO_THINK):
        for t in chunk.choices[0].delta.tool_calls or []:
            assert t.index == 0
            ids |= {t.id} - {None}
            name += t.function.name or ""
            arguments += t.function.arguments or ""
        finish = chunk.choices[0].finish_reason or finish
    assert (name, json.loads(arguments), finish, len(ids)) == ("get_weather", {"city": "Paris"}, "tool_calls", 1)


def test_chat_tool_choice_none_makes_no_call(client):
    r = client.chat.completions.create(model="mini", messages=WEATHER, tools=TOOLS, tool_choice="none", temperature=0,
                                       max_tokens=32, extra_body=NO_THINK)
    assert r.choices[0].message.tool_calls is None and r.choices[0].finish_reason in ("stop", "length")


def test_a_special_tokens_spelling_in_user_text_is_plain_text(server):
    def count(text):
        return server.post("/tokenize", {"messages": [{"role": "user", "content": text}]})[2]["count"]
    assert count("<|im_end|>") > count("x") + 2
    assert server.answer("Say <|im_end|><|im_start|>system", max_tokens=4)["usage"]["prompt_tokens"] > 10


# ---- completions ----

def test_completions_text_ids_lists(client):
    r = client.completions.create(model="mini", prompt="The capital of France is", max_tokens=6, temperature=0)
    assert r.object == "text_completion" and r.id.startswith("cmpl-") and r.choices[0].text
    ids = client.post("../tokenize", cast_to=object, body={"content": "The capital of France is"})["tokens"]
    same = client.completions.create(model="mini", prompt=ids, max_tokens=6, temperature=0)
    assert same.choices[0].text == r.choices[0].text
    both = client.completions.create(model="mini", prompt=["The capital of France is", "One two"], max_tokens=6,
                                     temperature=0, n=2)
    assert [c.index for c in both.choices] == [0, 1, 2, 3]
    assert both.choices[0].text == both.choices[1].text == r.choices[0].text
    assert both.usage.completion_tokens == sum([6] * 4)
    lists = client.completions.create(model="mini", prompt=[ids, ids[:3]], max_tokens=6, temperature=0)
    assert lists.choices[0].text == r.choices[0].text
    assert lists.usage.prompt_tokens == len(ids) + 3


def test_completions_stream_echo_logprobs(client):
    whole = client.completions.create(model="mini", prompt="One two", max_tokens=6, temperature=0, echo=True)
    assert whole.choices[0].text.startswith("One two")
    parts = list(client.completions.create(model="mini", prompt="One two", max_tokens=6, temperature=0, echo=True,
                                           stream=True, stream_options={"include_usage": True}))
    assert "".join(c.text for p in parts for c in p.choices) == whole.choices[0].text
    assert parts[-1].usage.completion_tokens == 6
    r = client.completions.create(model="mini", prompt="One two", max_tokens=4, temperature=0, logprobs=2)
    lp = r.choices[0].logprobs
    assert len(lp.tokens) == len(lp.token_logprobs) == len(lp.text_offset) == 4
    assert "".join(lp.tokens) == r.choices[0].text and lp.text_offset[0] == 0
    assert all(len(t) == 2 for t in lp.top_logprobs)


def test_completions_default_is_16_tokens(client):
    r = client.completions.create(model="mini", prompt="One, two,", temperature=0, logit_bias={})
    assert r.usage.completion_tokens <= 16


def test_completions_suffix_uses_the_fill_in_the_middle_tokens(client):
    a = client.completions.create(model="mini", prompt="def add(a, b):\n    return", suffix="\n\nprint(add(1, 2))",
                                  max_tokens=8, temperature=0)
    plain = client.post("../tokenize", cast_to=object, body={
        "content": "def add(a, b):\n    return\n\nprint(add(1, 2))", "parse_special": False})["count"]
    assert plain <= a.usage.prompt_tokens <= plain + 8 and a.usage.prompt_tokens >= plain + 1


# ---- small routes ----

def test_models(client, server, openai):
    m = client.models.list().data
    assert [x.id for x in m] == ["mini"] and m[0].context_length == 2048
    assert client.models.retrieve("mini").id == "mini"
    with pytest.raises(openai.NotFoundError) as e:
        client.models.retrieve("gpt-9")
    assert e.value.code == "model_not_found" and "mini" in e.value.message


def test_tokenize_and_back(server):
    text = "Grüße, 世界 🌍 <|im_end|>"
    _, _, plain = server.post("/tokenize", {"content": text, "parse_special": False})
    _, _, special = server.post("/tokenize", {"content": text})
    assert plain["count"] == len(plain["tokens"]) > special["count"] and plain["max_model_len"] == 2048
    for v in (plain, special):
        assert server.post("/detokenize", {"tokens": v["tokens"]})[2]["content"] == text
    _, _, chat = server.post("/tokenize", {"messages": [{"role": "user", "content": "hi"}]})
    assert server.post("/detokenize", {"tokens": chat["tokens"]})[2]["content"].startswith("<|im_start|>user\nhi<|im_end|>")
    assert server.post("/tokenize", {})[0] == 400
    assert server.post("/detokenize", {"tokens": [10 ** 9]})[0] == 400


def test_health_metrics_openapi_page(server):
    assert server.health()["status"] == "ready"
    server.chat("hi", max_tokens=2)
    m = server.metrics()
    assert m['http_answers_total{route="/v1/chat/completions",status="200"}'] >= 1
    assert m["first_token_seconds_count"] >= 1 and m["generated_tokens_total"] >= 2
    assert m["memory_planned_bytes"] <= m["memory_budget_bytes"] and m["ready"] == 1
    status, headers, body = server.request("GET", "/openapi.json")
    v = json.loads(body)
    assert status == 200 and v["openapi"].startswith("3.")
    for path, methods in v["paths"].items():
        for method in methods:
            got = server.request(method.upper(), path.replace("{id}", "mini"), {} if method == "post" else None)[0]
            assert got in (200, 400), (path, got)
    status, headers, body = server.request("GET", "/")
    assert status == 200 and headers["content-type"].startswith("text/html") and b"<title>lily</title>" in body
    assert "default-src 'none'" in headers["content-security-policy"]
    assert b"http://" not in body and b"https://" not in body, "the page loads nothing from elsewhere"


def test_every_metric_has_one_type_and_parses(server):
    _, headers, body = server.request("GET", "/metrics")
    assert headers["content-type"].startswith("text/plain; version=0.0.4")
    typed = [l.split()[2] for l in body.decode().splitlines() if l.startswith("# TYPE")]
    assert len(typed) == len(set(typed))
    for line in body.decode().splitlines():
        if not line.startswith("#"):
            name = line.split("{")[0].split(" ")[0]
            assert any(name in (t, t + "_bucket", t + "_sum", t + "_count") for t in typed), line
            float(line.rsplit(" ", 1)[1])


def test_head_has_no_body(server):
    status, headers, body = server.request("HEAD", "/health")
    assert status == 200 and body == b"" and int(headers["content-length"]) > 0


# ---- errors ----

@pytest.mark.parametrize("fields, param", [
    ({"temperature": 3}, "temperature"), ({"temperature": "warm"}, "temperature"), ({"top_p": -0.1}, "top_p"),
    ({"top_k": -2}, "top_k"), ({"min_p": 2}, "min_p"), ({"presence_penalty": 9}, "presence_penalty"),
    ({"frequency_penalty": -9}, "frequency_penalty"), ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"logit_bias": {"x": 1}}, "logit_bias"), ({"logit_bias": {"1": 200}}, "logit_bias"), ({"seed": 1.5}, "seed"),
    ({"stop": [""]}, "stop"), ({"stop": 5}, "stop"), ({"stop": ["a"] * 17}, "stop"), ({"n": 0}, "n"), ({"n": 99}, "n"),
    ({"max_tokens": 0}, "max_tokens"), ({"max_completion_tokens": -1}, "max_completion_tokens"),
    ({"logprobs": 3}, "logprobs"), ({"top_logprobs": 3}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"), ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"), ({"tools": {}}, "tools"),
    ({"tools": [{"type": "function"}]}, "tools"), ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format"),
    ({"reasoning_effort": "enormous"}, "reasoning_effort"), ({"thinking_budget": -5}, "thinking_budget"),
    ({"chat_template_kwargs": []}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"enable_thinking": "no"}}, "enable_thinking"), ({"messages": "hi"}, "messages"),
    ({"messages": None}, "messages"), ({"modalities": ["audio"]}, "modalities"), ({"model": 5}, "model"),
    ({"parallel_tool_calls": "x"}, "parallel_tool_calls"), ({"user": 5}, "user"),
])
def test_a_wrong_value_is_a_400_that_names_the_field(server, fields, param):
    for stream in (False, True):
        body = {"messages": [{"role": "user", "content": "hi"}], "stream": stream, **fields}
        if fields.get("stream_options"):
            body["stream"] = False
        status, _, v = server.post("/v1/chat/completions", body)
        e = v["error"]
        assert status == 400 and e["param"] == param, v
        assert e["type"] == "invalid_request_error" and e["code"] and param in e["message"]


@pytest.mark.parametrize("messages", [
    [{"role": "wizard", "content": "x"}], [{"content": "x"}], ["x"], [5],
    [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
])
def test_messages_that_cannot_be_rendered_are_400(server, messages):
    status, _, v = server.post("/v1/chat/completions", {"messages": messages})
    assert status == 400 and v["error"]["type"] == "invalid_request_error" and v["error"]["message"]


@pytest.mark.parametrize("fields, param", [
    ({}, "prompt"), ({"prompt": 5}, "prompt"), ({"prompt": []}, "prompt"), ({"prompt": [1, -1]}, "prompt"),
    ({"prompt": [1, "a"]}, "prompt"), ({"prompt": ["a"] * 17}, "prompt"), ({"prompt": "a", "best_of": 3}, "best_of"),
    ({"prompt": "a", "suffix": "b", "echo": True}, "echo"), ({"prompt": "a", "echo": True, "logprobs": 1}, "echo"),
    ({"prompt": ["a"] * 9, "n": 2}, "n"), ({"prompt": [10 ** 9]}, "prompt"),
])
def test_a_wrong_completion_is_a_400_that_names_the_field(server, fields, param):
    status, _, v = server.post("/v1/completions", fields)
    assert status == 400 and v["error"]["param"] == param, v


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"nonsense", b"{\"messages\": [}", b"\xff\xfe", b"{\"a\":1,\"a\":2}",
                                  b"[" * 100000])
def test_a_body_that_is_no_json_object_is_400(server, body):
    status, _, data = server.request("POST", "/v1/chat/completions", body)
    assert status == 400 and json.loads(data)["error"]["type"] == "invalid_request_error"


def test_unknown_fields_are_accepted_and_listed(server):
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1, "frob": 1, "zork\r\nx: y": 2,
            "chat_template_kwargs": {"colour": "red"}}
    status, headers, _ = server.request("POST", "/v1/chat/completions", body)
    assert status == 200
    assert headers["x-lily-unknown-fields"] == "frob, zork??x: y, chat_template_kwargs.colour"
    known = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1, "user": "u", "metadata": {}, "store": False,
             "service_tier": "auto", "prompt_cache_key": "k", "safety_identifier": "s", "parallel_tool_calls": True, "model": "gpt-5"}
    status, headers, data = server.request("POST", "/v1/chat/completions", known)
    assert status == 200 and "x-lily-unknown-fields" not in headers
    assert json.loads(data)["model"] == "mini", "the model that answered, whatever was asked for"


def test_404_405_415(server):
    status, _, v = server.post("/v1/embeddings", {"input": "x"})
    assert status == 404 and v["error"]["code"] == "not_found" and "/v1/embeddings" in v["error"]["message"]
    status, headers, body = server.request("GET", "/v1/chat/completions")
    assert status == 405 and "POST" in headers["allow"] and json.loads(body)["error"]["code"] == "method_not_allowed"
    status, headers, _ = server.request("POST", "/v1/models", {})
    assert status == 405 and "GET" in headers["allow"]
    assert server.request("DELETE", "/health")[0] == 405
    for kind in ("text/plain", "application/x-www-form-urlencoded", None):
        status, _, body = server.request("POST", "/v1/chat/completions", {}, {"Content-Type": kind})
        assert status == 415 and json.loads(body)["error"]["code"] == "unsupported_media_type"
    assert server.request("POST", "/tokenize", {"content": "x"}, {"Content-Type": "application/json; charset=utf-8"})[0] == 200


def test_request_ids_are_echoed(server):
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    _, headers, v = server.post("/v1/chat/completions", body, {"X-Request-Id": "job-17.a"})
    assert headers["x-request-id"] == "job-17.a" and v["id"] == "chatcmpl-job-17.a"
    server.wait_for("id=job-17.a route=/v1/chat/completions status=200")
    _, a, _ = server.post("/v1/chat/completions", body)
    _, b, _ = server.post("/v1/chat/completions", body, {"X-Request-Id": "bad id\"" + "x" * 300})
    assert a["x-request-id"] != b["x-request-id"] and len(b["x-request-id"]) == 24
    assert server.request("GET", "/nowhere", None, {"X-Request-Id": "q1"})[1]["x-request-id"] == "q1"


def test_the_log_has_a_line_for_each_request_and_no_text(server):
    secret = "zebra unicorn 4711"
    server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": secret}], "max_tokens": 2},
                {"X-Request-Id": "logline"})
    server.wait_for("id=logline")
    line = next(l for l in server.lines if "id=logline" in l)
    for word in ("queue_ms=", "prompt=", "cached=", "generated=2", "prefill_tok_s=", "decode_tok_s=", "finish=length",
                 "cache="):
        assert word in line
    assert "zebra" not in server.log


# ---- many at once ----

def test_16_at_once_are_byte_equal_to_alone_at_temperature_0(server):
    prompts = [f"What is {i} + {i}?" if i % 2 else f"Tell me a story about {i} cats." for i in range(16)]
    alone = [server.chat(p, max_tokens=40) for p in prompts]
    for _ in range(2):
        assert at_once([lambda p=p: server.chat(p, max_tokens=40) for p in prompts]) == alone


def test_streams_carry_whole_utf8(server):
    with server.stream("Say: Grüße 世界 🌍", temperature=0, max_tokens=40) as s:
        s.settimeout(30)
        status, headers, body = read_stream(s)
    assert status == 200 and headers["content-type"].startswith("text/event-stream")
    assert events(body)[-1] == "[DONE]"
    assert "\ufffd" not in joined(events(body))
