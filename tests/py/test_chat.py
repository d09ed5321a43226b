# SPDX-License-Identifier: Apache-2.0
"""`lily chat` as a person meets it on a terminal, and as a pipe does."""
import errno
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time

import pytest

from conftest import LILY, ROOT

TINY = "synth:tiny,layers=4"
MINI = ROOT / "models/mini"
needs_mini = pytest.mark.skipif(not (MINI / "config.json").exists(), reason="models/mini is not there")


class Terminal:
    """The program on a pseudo-terminal of its own, its session's leader."""

    def __init__(self, *args, env=None, program=(LILY, "chat")):
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
        self.process = subprocess.Popen(
            [*program, *map(str, args)], stdin=slave, stdout=slave, stderr=slave, cwd=ROOT, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            env={**os.environ, "TERM": "xterm", "LC_ALL": "C.UTF-8", **(env or {})})
        os.close(slave)
        self.seen = ""  # what was read and not yet asked for
        self.all = ""

    def read(self, wait):
        if not select.select([self.master], [], [], wait)[0]:
            return False
        try:
            data = os.read(self.master, 65536)
        except OSError as e:
            assert e.errno == errno.EIO
            data = b""
        text = data.decode(errors="replace")
        self.seen += text
        self.all += text
        return bool(data)

    def expect(self, pattern, timeout=60):
        """Reads until pattern; returns its match and forgets what came before its end."""
        end = time.monotonic() + timeout
        while True:
            m = re.search(pattern, self.seen)
            if m:
                self.seen = self.seen[m.end():]
                return m
            if not self.read(max(0.0, end - time.monotonic())):
                raise AssertionError(f"{pattern!r} did not come; read: {self.all!r}")

    def send(self, text):
        os.write(self.master, text.encode())

    def ask(self, line, pattern):
        """At the prompt: types a line, waits for what answers it and for the next prompt."""
        self.send(line + "\r")
        m = self.expect(pattern)
        if not m.group().endswith("> "):
            self.prompt()
        return m

    def prompt(self):
        self.expect(r"> (\x1b\[K)?$")

    def wait(self, timeout=60):
        end = time.monotonic() + timeout
        while self.process.poll() is None and time.monotonic() < end:
            self.read(0.05)
        while self.read(0):
            pass
        return self.process.returncode

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.master)


@pytest.fixture
def terminal(tmp_path):
    opened = []

    def start(*args, env=None):
        t = Terminal(*args, env={"XDG_STATE_HOME": str(tmp_path / "state"), "HOME": str(tmp_path), **(env or {})})
        opened.append(t)
        t.expect(r"/help lists the commands")
        t.prompt()
        return t
    yield start
    for t in opened:
        t.close()


def chat(lines, *args, env=None):
    done = subprocess.run([LILY, "chat", "--no-think", *map(str, args)], input="\n".join(lines).encode(), capture_output=True,
                          cwd=ROOT, timeout=120, env={**os.environ, **(env or {})})
    return done.returncode, done.stdout.decode(), done.stderr.decode()


# ---- a pipe ----

@needs_mini
def test_piped_lines_are_messages_and_only_answers_are_printed():
    status, out, err = chat(["What is 12 + 30?", "What is the capital of France?"], "-m", MINI, "--temp", "0")
    assert status == 0
    first, second = out.splitlines()
    assert "42" in first and "Paris" in second
    assert "\x1b" not in out + err and "> " not in out


def test_piped_errors_are_told_and_remembered():
    status, out, err = chat(["/nope", "/temp hot", "/max 3", "hello"], "-m", TINY, "--seed", "1")
    assert status == 1 and out.endswith("\n") and len(out) > 1
    assert "unknown command /nope" in err and "/temp: expected a number from 0 to 100, found hot" in err
    assert chat(["/quit", "hello"], "-m", TINY)[:2] == (0, "")
    assert chat([], "-m", TINY)[:2] == (0, "")


def test_a_message_over_several_lines(tmp_path):
    lines = ["/max 1", "one \\", "two", '"""', "three", "", "four", '"""', '"""five"""', "//six", f"/save {tmp_path}/c.json"]
    status, _, err = chat(lines, "-m", TINY)
    assert status == 0, err
    messages = json.loads((tmp_path / "c.json").read_text())["messages"]
    assert [m["content"] for m in messages if m["role"] == "user"] == ["one \ntwo", "three\n\nfour", "five", "/six"]


def test_save_and_load_round_trip(tmp_path):
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    status, _, err = chat(["/max 4", "hello", "/system be short", "again", f"/save {a}"], "-m", TINY, "--seed", "5")
    assert status == 0, err
    saved = json.loads(a.read_text())
    assert [m["role"] for m in saved["messages"]] == ["system", "user", "assistant", "user", "assistant"]
    assert not list(tmp_path.glob("*.part"))
    status, _, err = chat([f"/save {b}"], "-m", TINY, "--load", a)
    assert status == 0 and json.loads(b.read_text()) == saved
    # A bare list of messages is read too.
    bare = tmp_path / "bare.json"
    bare.write_text(json.dumps(saved["messages"]))
    assert chat([f"/load {bare}", f"/save {b}"], "-m", TINY)[0] == 0
    assert json.loads(b.read_text()) == saved


@pytest.mark.parametrize("text, words", [
    ("{", "line 1"), ("{}", "without messages"), ("[1]", "message 0"), ('{"messages": [{"content": "x"}]}', "role"),
    ('{"messages": [], "tools": 7}', "tools"), ('[{"role": "robot", "content": "x"}]', "robot"),
    ('[{"role": "user", "content": "x"}, {"role": "user", "content": 7}]', "message 1"),
])
def test_a_bad_file_leaves_the_conversation_as_it_was(tmp_path, text, words):
    bad, out = tmp_path / "bad.json", tmp_path / "out.json"
    bad.write_text(text)
    status, _, err = chat(["/max 1", "hello", f"/load {bad}", f"/load {tmp_path}/none", f"/save {out}"], "-m", TINY)
    assert status == 1 and str(bad) in err and words in err and f"{tmp_path}/none" in err
    assert json.loads(out.read_text())["messages"][0]["content"] == "hello"


def test_a_save_that_fails_leaves_the_old_file(tmp_path):
    status, _, err = chat(["/max 1", "hello", f"/save {tmp_path}/no/such/folder.json"], "-m", TINY)
    assert status == 1 and "no/such/folder.json" in err
    assert list(tmp_path.iterdir()) == []


def test_a_file_goes_before_the_next_message(tmp_path):
    (tmp_path / "note.txt").write_text("grüne Wiese\n")
    (tmp_path / "bin").write_bytes(b"a\xff")
    status, _, err = chat(["/max 1", f"/file {tmp_path}/note.txt", "Summarise it.", f"/file {tmp_path}/bin", "/file",
                           f"/save {tmp_path}/c.json"], "-m", TINY)
    assert status == 1 and "no UTF-8 at byte 1" in err and "/file: expected a file" in err
    content = json.loads((tmp_path / "c.json").read_text())["messages"][0]["content"]
    assert content == f"{tmp_path}/note.txt:\n\ngrüne Wiese\n\n\nSummarise it."


def test_file_names_are_read_as_a_shell_reads_them(tmp_path):
    for name in ("two words", "a\\b", "it's"):
        (tmp_path / name).write_text(f"text of {name}")
    status, _, err = chat(["/max 1", f'/file "{tmp_path}/two words"', f"/file {tmp_path}/two\\ words", f"/file '{tmp_path}/a\\b'",
                           f"/file {tmp_path}/it\\'s", "hello", f"/save '{tmp_path}/c d.json'"], "-m", TINY)
    assert status == 0, err
    content = json.loads((tmp_path / "c d.json").read_text())["messages"][0]["content"]
    assert content.count("text of two words") == 2 and "text of a\\b" in content and "text of it's" in content
    before = sorted(p.name for p in tmp_path.iterdir())
    status, _, err = chat(['/save ""', "/save ''", "/save", '/save "open', '/save "a" b'], "-m", TINY)
    assert status == 1 and err.count("/save: expected a file, found nothing") == 3 and err.count("closed by its quote") == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == before and not os.path.exists(ROOT / '""')


def test_input_that_cannot_be_read_is_told():
    folder = os.open(ROOT, os.O_RDONLY)
    done = subprocess.run([LILY, "chat", "-m", TINY], stdin=folder, capture_output=True, cwd=ROOT, timeout=120)
    os.close(folder)
    assert done.returncode == 1 and b"cannot read standard input" in done.stderr


def test_undo_retry_new(tmp_path):
    c = tmp_path / "c.json"

    def contents(*lines):
        status, _, err = chat(["/max 2", *lines, f"/save {c}"], "-m", TINY, "--seed", "3")
        assert status == 0, err
        return [m["content"] for m in json.loads(c.read_text())["messages"]]
    one = contents("one")
    assert contents("one", "two", "/undo") == one
    assert contents("one", "/retry") == one
    assert contents("one", "/new") == []
    assert contents("/system s", "one", "/new") == ["s"]
    status, _, err = chat(["/undo", "/retry", "/thoughts"], "-m", TINY)
    assert status == 1 and err.count("lily chat: ") == 3


def test_a_message_that_cannot_be_answered_is_taken_back(tmp_path):
    status, out, err = chat(["x" * 500, "/max 2", "short", f"/save {tmp_path}/c.json"], "-m", TINY, "--ctx", "64")
    assert status == 1 and "context holds 64" in err and out
    messages = json.loads((tmp_path / "c.json").read_text())["messages"]
    assert [m["content"] for m in messages if m["role"] == "user"] == ["short"]


@needs_mini
def test_tools_are_called_and_answered(tmp_path):
    tools = [{"type": "function", "function": {
        "name": "get_weather", "description": "Get the current weather for a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]
    (tmp_path / "t.json").write_text(json.dumps(tools))
    status, out, err = chat(["What is the weather in Paris?", '/result {"temperature": 17, "condition": "rain"}',
                             f"/save {tmp_path}/c.json"], "-m", MINI, "--tools", tmp_path / "t.json", "--temp", "0")
    assert status == 0, err
    assert 'call get_weather {"city": "Paris"}' in out and "17" in out.splitlines()[-1]
    saved = json.loads((tmp_path / "c.json").read_text())
    assert saved["tools"] == tools and saved["messages"][1]["tool_calls"][0]["function"]["name"] == "get_weather"


@needs_mini
def test_the_model_goes_on_when_all_its_calls_have_results(tmp_path):
    calls = [{"function": {"name": "get_weather", "arguments": {"city": city}}} for city in ("Paris", "Rome")]
    messages = [{"role": "user", "content": "What is the weather in Paris and in Rome?"},
                {"role": "assistant", "content": "", "tool_calls": calls}]
    (tmp_path / "c.json").write_text(json.dumps({"messages": messages}))
    for results, roles in (1, ["tool"]), (2, ["tool", "tool", "assistant"]):
        lines = [f"/load {tmp_path}/c.json", *['/result {"temperature": 17}'] * results, f"/save {tmp_path}/d.json"]
        status, _, err = chat(lines, "-m", MINI, "--temp", "0", "--no-think")
        assert status == 0, err
        assert [m["role"] for m in json.loads((tmp_path / "d.json").read_text())["messages"][2:]] == roles


@pytest.mark.parametrize("command", ["/stats", "/show", "/help", "/think off", "/fold off", "/top-p 0.5", "/top-k 3",
                                     "/seed 4", "/seed off", "/temp 0", "/tools", "/hel"])
def test_commands_that_only_set_or_show(command):
    assert chat([command], "-m", TINY)[0] == 0


def test_stats_and_show_print_what_there_is():
    _, out, _ = chat(["/max 3", "hello", "/stats", "/show", "/help"], "-m", TINY, "--seed", "1")
    assert re.search(r"context +\d+ of \d+ tokens", out) and "finish: length" in out
    assert "user: hello\nassistant: " in out
    assert "/retry" in out and "Ctrl-C stops the answer" in out


def test_ctrl_c_of_a_piped_run_stops_the_answer_and_then_the_program():
    p = subprocess.Popen([LILY, "chat", "-m", TINY, "--ignore-eos", "--no-think"], stdin=subprocess.PIPE,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT)
    p.stdin.write(b"hello\n")
    p.stdin.flush()
    assert p.stdout.read(10)
    p.send_signal(signal.SIGINT)
    rest = p.stdout.readline()  # the answer ends with its line feed
    assert p.poll() is None
    p.stdin.write(b"/max 2\nagain\n")
    p.stdin.close()
    assert p.wait(60) == 0
    assert p.stdout.read() and rest is not None
    p.stdout.close()
    p.stderr.close()


# ---- a terminal ----

@needs_mini
def test_an_answer_with_folded_thinking_and_speed(terminal):
    t = terminal("-m", MINI, "--temp", "0")
    t.send("What is 12 + 30?\r")
    t.expect(r"thinking, \d+ tokens?")
    t.expect(r"thought for [\d.]+ s, \d\d+ tokens \(/thoughts shows them\)")
    t.expect("42")
    t.expect(r"\d+ tokens, [\d.]+ a second")
    t.prompt()
    assert re.search(r"\w", t.ask("/thoughts", r"thoughts\r\n(?s:(.*?))> $").group(1))
    t.ask("/fold off", "thinking is shown whole")
    t.send("What is 12 + 31?\r")
    t.expect(r"43")
    t.expect(r"a second")
    t.prompt()
    assert t.all.count("thought for") == 1
    t.ask("/think off", "thinking is off")
    t.send("\x04")
    assert t.wait() == 0


def test_ctrl_c_stops_the_answer_and_not_the_program(terminal):
    t = terminal("-m", TINY, "--ignore-eos", "--no-think", "--ctx", "16384")
    for _ in range(2):
        t.send("go on for ever\r")
        t.expect(r"for ever\r\n(?s:.{20})")
        t.send("\x03")
        t.expect(r"\d+ tokens, [\d.]+ a second, stopped")
        t.prompt()
    assert t.process.poll() is None
    # At the prompt it forgets the line and keeps the program.
    t.send("half a line\x03")
    t.expect(r"\^C")
    t.prompt()
    t.ask("/max 2", "at most 2 new tokens")
    t.ask("hello", "cut at the token limit")
    t.ask("/stats", r"messages +6")  # two answers cut short, one whole
    t.send("/quit\r")
    assert t.wait() == 0


def test_an_interrupt_from_outside_does_not_end_it_either(terminal):
    t = terminal("-m", TINY, "--ignore-eos", "--no-think")
    t.send("go\r")
    t.expect(r"go\r\n(?s:.{10})")
    os.kill(t.process.pid, signal.SIGINT)
    t.expect("stopped")
    t.prompt()
    os.kill(t.process.pid, signal.SIGINT)  # at the prompt
    t.read(0.5)
    t.ask("/max 1", "at most 1")
    assert t.process.poll() is None


def test_editing_completion_and_history(terminal, tmp_path):
    t = terminal("-m", TINY)
    t.ask("/mx 7\x1b[D\x1b[D\x1b[Da", "at most 7 new tokens")  # the cursor moves back and the a goes in
    t.send("/ma\t")
    t.expect(r"x ")
    t.send("5\r")
    t.expect("at most 5 new tokens")
    t.prompt()
    t.send("/t\t")  # several begin so
    t.expect(r"/thoughts .*/think .*/temp")
    t.send("\x15")  # Ctrl-U
    (tmp_path / "unusual-name.txt").write_text("text")
    (tmp_path / "with space").write_text("more")
    for begin, rest in (("unus", r"ual-name\.txt"), ("wit", r"h\\ space")):
        t.send(f"/file {tmp_path}/{begin}\t")
        t.expect(rest)
        t.send("\r")
        t.expect("4 bytes of ")
        t.prompt()
    t.send("/quit\r")
    assert t.wait() == 0
    history = tmp_path / "state/lily/history"
    assert "at most" not in history.read_text() and "/max" in history.read_text()
    assert history.stat().st_mode & 0o077 == 0
    again = terminal("-m", TINY)
    again.send("\x1b[A" * 4 + "\r")  # fourth from the end: /max 5
    again.expect("at most 5 new tokens")
    again.prompt()


def test_letters_of_more_than_a_byte(terminal, tmp_path):
    t = terminal("-m", TINY, "--no-think")
    t.ask("/max 1", "at most 1")
    t.ask("Grüße, 世界 🙂x\x7f", "1 token")
    t.ask(f"/save {tmp_path}/c.json", "saved to")
    assert json.loads((tmp_path / "c.json").read_text())["messages"][0]["content"] == "Grüße, 世界 🙂"


def test_several_lines_on_a_terminal(terminal, tmp_path):
    t = terminal("-m", TINY, "--no-think")
    t.ask("/max 1", "at most 1")
    t.send("one \\\r")
    t.expect(r"\. (\x1b\[K)?$")
    t.send("two\r")
    t.expect("1 token")
    t.prompt()
    t.send('"""\r')
    t.expect(r"\. (\x1b\[K)?$")
    t.send("three\r")
    t.expect(r"three\r\n.*\. (\x1b\[K)?$")
    t.send("\x03")  # forgets the whole block
    t.prompt()
    t.ask(f"/save {tmp_path}/c.json", "saved to")
    messages = json.loads((tmp_path / "c.json").read_text())["messages"]
    assert [m["content"] for m in messages if m["role"] == "user"] == ["one \ntwo"]


def test_what_is_pasted_is_one_message(terminal, tmp_path):
    t = terminal("-m", TINY, "--no-think")
    assert t.all.endswith("\x1b[?2004h> ")  # the terminal is asked to mark it
    t.ask("/max 1", "at most 1")
    t.ask("Look: \x1b[200~one\rtwo\r\x07\x85\tthree \x1b[20 é世\r\r\x1b[201~!", "1 token")
    assert t.all.rindex("\x1b[?2004l") < t.all.rindex("1 token")  # and not while something else is typed
    t.send("\x1b[200~a\rb\x1b[201~")
    t.expect("b")
    t.send("\x03")
    t.expect(r"\^C")
    t.prompt()
    t.ask("\x1b[200~\x1b[201~next", "1 token")
    many = [f"line {i}" for i in range(60)]  # more than the screen has
    t.ask("\x1b[200~" + "\r".join(many) + "\x1b[201~", "1 token")
    t.ask(f"/save {tmp_path}/c.json", "saved to")
    messages = json.loads((tmp_path / "c.json").read_text())["messages"]
    assert [m["content"] for m in messages if m["role"] == "user"] == ["Look: one\ntwo\n\tthree [20 é世!", "next", "\n".join(many)]


def test_history_brings_back_a_block(terminal, tmp_path):
    t = terminal("-m", TINY, "--no-think")
    t.ask("/max 1", "at most 1")
    t.ask('"""/not a command\rbut text\r"""', "1 token")
    t.ask("\x1b[A", "1 token")
    t.ask(f"/save {tmp_path}/c.json", "saved to")
    messages = json.loads((tmp_path / "c.json").read_text())["messages"]
    assert [m["content"] for m in messages if m["role"] == "user"] == ["/not a command\nbut text"] * 2


def test_the_models_text_cannot_steer_the_terminal(terminal):
    # Only the escape character may be chosen: byte tokens follow the printable ones in the byte order of the family.
    t = terminal("-m", TINY, "--no-think", "--logit-bias", f"{188 + 27}:1000", "--max-tokens", "3", env={"TERM": "xterm"})
    t.send("hello\r")
    m = t.expect(r"hello\r\n(?s:(.*?))\d+ tokens")
    assert "^[^[^[" in m.group(1)


def test_a_dumb_terminal_gets_no_escapes(terminal):
    t = terminal("-m", TINY, "--no-think", env={"TERM": "dumb"})
    t.ask("/max 2", "at most 2 new tokens")
    t.ask("hello", "cut at the token limit")
    t.send("/quit\r")
    assert t.wait() == 0 and "\x1b[2m" not in t.all and "\x1b[?2004" not in t.all


def test_end_of_input_leaves(terminal):
    t = terminal("-m", TINY)
    t.send("\x04")
    assert t.wait() == 0


def test_a_hang_up_ends_the_program(terminal):
    t = terminal("-m", TINY)
    os.kill(t.process.pid, signal.SIGHUP)
    assert t.wait() != 0

