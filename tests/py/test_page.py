# SPDX-License-Identifier: Apache-2.0
"""The page at / in a real browser: it shows the server's state, asks, stops, and speaks to nobody but its own server."""
import json
import os
import shutil
import time

import pytest

from serving import SLOW, Server, no_end

selenium = pytest.importorskip("selenium", reason="selenium is not installed: the page is not seen in a browser")
from selenium import webdriver  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="chromium is not installed: the page is not seen in a browser")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    os.environ["SE_OFFLINE"] = "true"
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for word in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--no-first-run",
                 "--disable-background-networking", "--disable-component-update",
                 f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    b = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield b
    b.quit()


@pytest.fixture(scope="module")
def server():
    with Server("--threads", "2") as s:
        yield s


def wait(what, seconds=30):
    end = time.time() + seconds * SLOW
    while time.time() < end:
        if found := what():
            return found
        time.sleep(0.05)
    raise AssertionError("it did not come")


class Page:
    def __init__(self, browser, url):
        self.browser = browser
        browser.get_log("performance"), browser.get_log("browser")
        browser.get(url + "/")

    def __getitem__(self, name):
        return self.browser.find_element(By.ID, name)

    def text(self, name):
        return self.browser.execute_script("return document.getElementById(arguments[0]).textContent", name)

    def figures(self):
        """The table; it is drawn anew each second, so it is read in one go."""
        return dict(self.browser.execute_script(
            "return [...document.querySelectorAll('#figures dt')].map(t => [t.textContent, t.nextSibling.textContent])"))

    def ask(self, question):
        self["text"].clear()
        self["text"].send_keys(question)
        self["go"].click()

    def is_over(self):
        return self["go"].is_enabled() and not self["stop"].is_enabled()

    def requests(self):
        """Addresses on the network that were asked for since the page was opened (the browser's own pages are not there)."""
        found = []
        for entry in self.browser.get_log("performance"):
            m = json.loads(entry["message"])["message"]
            if m["method"] in ("Network.requestWillBeSent", "Network.webSocketCreated"):
                found.append(m["params"].get("url") or m["params"]["request"]["url"])
        return [u for u in found if u.split(":")[0] in ("http", "https", "ws", "wss")]


def test_it_shows_the_state_and_asks_its_own_server_alone(browser, server):
    page = Page(browser, server.url)
    assert browser.title == "lily"
    wait(lambda: page.text("state") == "ready")
    figures = wait(page.figures)
    assert set(figures) == {"model", "batch", "queue", "new tokens", "prompt tokens", "cache", "KV blocks", "memory"}
    assert figures["model"].startswith("mini, context ") and figures["batch"] == "0 of 8" and figures["queue"] == "0 waiting"
    assert " MB planned of " in figures["memory"]
    page.ask("What is 2+2?")
    wait(lambda: "4" in page.text("answer") and page.is_over())
    assert page.text("note") == "" and page.text("reasoning") == ""
    wait(lambda: not page.figures()["cache"].startswith("0% of 0 "))  # the table follows
    asked = page.requests()
    assert f"{server.url}/v1/chat/completions" in asked and f"{server.url}/metrics" in asked
    assert [u for u in asked if not u.startswith(server.url + "/")] == []
    assert [e for e in browser.get_log("browser") if e["level"] == "SEVERE" and "favicon" not in e["message"]] == []
    assert server.url + "/v1/chat/completions" in page.text("curl")


def test_thinking_is_shown_apart(browser, server):
    page = Page(browser, server.url)
    page["think"].click()
    page.ask("What is 2+2?")
    wait(lambda: page.text("reasoning") and "4" in page.text("answer") and page.is_over())
    assert "<think>" not in page.text("reasoning") + page.text("answer")


def test_markup_in_an_answer_stays_text(browser, server):
    page = Page(browser, server.url)
    browser.execute_script("take({choices: [{delta: {content: '<img src=x onerror=document.title=1><b>x</b>'}}]})")
    assert page.text("answer") == "<img src=x onerror=document.title=1><b>x</b>"
    assert browser.execute_script("return document.getElementById('answer').children.length") == 0
    assert browser.title == "lily"


def test_stop_ends_the_answer_on_the_server(browser):
    with Server("--threads", "1", model="synth:micro") as s:
        page = Page(browser, s.url)
        # The page asks as it does; without an end of its own the answer would fill the context.
        browser.execute_script(
            "const plain = window.fetch; window.fetch = (u, o) => plain(u, o && o.body ? {...o, body: JSON.stringify("
            "{...JSON.parse(o.body), ignore_eos: true, logit_bias: arguments[0]})} : o)", no_end(300))
        page.ask("x")
        wait(lambda: page.text("answer"))
        page["stop"].click()
        wait(page.is_over)
        wait(lambda: s.metrics()["answers_live"] == 0)
        assert page.text("note") == ""


def test_a_key_is_asked_for_and_sent(browser, tmp_path):
    (tmp_path / "keys").write_text("sesame\n")
    with Server("--api-keys", tmp_path / "keys") as s:
        page = Page(browser, s.url)
        wait(lambda: page["keyrow"].is_displayed())
        page.ask("What is 2+2?")
        wait(lambda: "API keys" in page.text("note"))
        page["key"].send_keys("sesame")
        wait(page.figures)
        page.ask("What is 2+2?")
        wait(lambda: "4" in page.text("answer") and page.is_over())


def test_a_server_that_is_gone_is_told(browser):
    with Server(model="synth:micro") as s:
        page = Page(browser, s.url)
        wait(lambda: page.text("state") == "ready")
    wait(lambda: page.text("state") == "the server does not answer")
