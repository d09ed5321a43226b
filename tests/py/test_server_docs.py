# SPDX-License-Identifier: Apache-2.0
"""The documents keep their word: the blocks of docs/clients.md run as printed, docs/api.md names every field, code and option."""
import json
import re
import shutil
import subprocess
import sys

import pytest

from conftest import ROOT, run_lily
from serving import Server

CLIENTS = (ROOT / "docs/clients.md").read_text()
API = (ROOT / "docs/api.md").read_text()


@pytest.fixture(scope="module")
def server():
    with Server() as s:
        yield s


def blocks(kind):
    return re.findall(rf"```{kind}\n(.*?)```", CLIENTS, flags=re.S)


def at(server, text):
    return text.replace("http://127.0.0.1:8080", server.url)


@pytest.mark.parametrize("i", range(len(blocks("sh"))))
def test_shell_blocks(server, i):
    if not shutil.which("curl"):
        pytest.skip("curl is not installed")
    done = subprocess.run(["sh", "-c", at(server, blocks("sh")[i])], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and '"error"' not in done.stdout
    assert "4" in done.stdout and ("[DONE]" in done.stdout or json.loads(done.stdout)["choices"])


@pytest.mark.parametrize("name", ["openai", "langchain_openai"])
def test_python_blocks(server, name):
    pytest.importorskip(name)
    block = next(b for b in blocks("python") if f"from {name} import" in b)
    done = subprocess.run([sys.executable, "-c", at(server, block)], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert ("sunny" in done.stdout or "21" in done.stdout) if name == "langchain_openai" else "4" in done.stdout


def test_the_measuring_command_of_the_api_page(server):
    (command,) = re.findall(r"^    build/lily (bench --serve .*)$", API, flags=re.M)
    done = run_lily(*at(server, command).split())
    assert done.status == 0 and len(done.text.splitlines()) == 2 + 4, done.err


def test_json_blocks_are_json():
    for block in blocks("json"):
        assert json.loads(block)["provider"]["lily"]["options"]["baseURL"] == "http://127.0.0.1:8080/v1"


def test_every_field_of_the_openapi_description_is_described_and_taken(server):
    spec = json.loads((ROOT / "src/server/openapi.json").read_text())
    schemas = spec["components"]["schemas"]
    for schema, path, body in (("ChatRequest", "/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
                               ("CompletionRequest", "/v1/completions", {"prompt": "hi"})):
        for field in schemas[schema]["properties"]:
            assert f"`{field}`" in API or f"`{field}." in API, field
            _, headers, _ = server.request("POST", path, {**body, "max_tokens": 1, field: body.get(field)})
            assert "x-lily-unknown-fields" not in headers, field


def test_every_error_code_is_described():
    for file in ("routes.c", "http.c"):
        text = (ROOT / "src/server" / file).read_text()
        for code in re.findall(r'reply_refuse\(c, \d+, "\w+", "(\w+)"', text):
            assert f"`{code}`" in API, code


def test_every_option_of_the_api_page_exists():
    listed = run_lily("serve", "--help").text + run_lily("bench", "--help").text
    for option in set(re.findall(r"`(--[a-z-]+)", API + CLIENTS)):
        assert option + " " in listed + " " or option + "\n" in listed, option
