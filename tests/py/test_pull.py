# SPDX-License-Identifier: Apache-2.0
"""`lily pull` against a hub that misbehaves: stalls, cuts, lies, redirects, refuses."""
import errno
import hashlib
import http.server
import json
import os
import pty
import re
import resource
import select
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time

import pytest

from conftest import LILY, ROOT

FILES = {
    "config.json": b'{"a": 1}\n',
    "model-00001-of-00002.safetensors": bytes(range(256)) * 3000,
    "model-00002-of-00002.safetensors": os.urandom(300000),
    "chat_template.jinja": b"{{ x }}",
    "picture.png": b"not wanted",
}


def git_id(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Hub:
    """A hub of one repository; `plan` maps a path to a list of behaviours, one an attempt."""

    def __init__(self):
        self.files = dict(FILES)
        self.plan = {}
        self.requests = []
        self.listing = None
        self.away = None  # where "redirect away" leads
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args):
                pass

            def do_GET(self):
                hub.answer(self)

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def entries(self):
        out = [{"type": "directory", "path": "sub", "oid": "0" * 40, "size": 0}]
        for path, data in self.files.items():
            e = {"type": "file", "path": path, "size": len(data), "oid": git_id(data)}
            if path.endswith(".safetensors"):
                e["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data)}
            out.append(e)
        return out

    def answer(self, h):
        self.requests.append((h.path, h.headers.get("Range"), h.headers.get("Authorization")))
        where = "/" + h.path.split("://")[-1].split("/", 1)[1]  # asked as a proxy, it gets a whole URL
        if where.startswith("/api/models/"):
            body = json.dumps(self.entries() if self.listing is None else self.listing).encode()
            step = self.plan.get("listing", [])
            what = step.pop(0) if step else "good"
            if isinstance(what, int):
                return self.send(h, what, b"no", {"Retry-After": "1"} if what == 429 else {})
            if what == "html":
                return self.send(h, 200, b"<html>please log in</html>", {"Content-Type": "Text/HTML"})
            return self.send(h, 200, body)
        path = h.path.split("/resolve/")[1].split("/", 1)[1] if "/resolve/" in h.path else h.path.split("/")[-1]
        data = self.files.get(path)
        if data is None:
            return self.send(h, 404, b"nothing")
        step = self.plan.get(path, [])
        what = step.pop(0) if step else "good"
        start = 0
        if h.headers.get("Range"):
            start = int(h.headers["Range"].split("=")[1].split("-")[0])
        if isinstance(what, int):
            return self.send(h, what, b"no", {"Retry-After": "1"} if what == 429 else {})
        if what == "redirect":
            return self.send(h, 302, b"", {"Location": f"{self.url}/cdn/{path}"})
        if what == "redirect away":
            return self.send(h, 307, b"", {"Location": f"{self.away}/cdn/{path}"})
        if what == "empty":
            return self.send(h, 200, b"")
        if what == "mute":
            time.sleep(4)
            h.close_connection = True
            return None
        if what == "html":
            return self.send(h, 200, b"<html>please log in</html>", {"Content-Type": "text/html; charset=utf-8"})
        if what == "ignore-range":
            start = 0
        code = 206 if start else 200
        rest = data[start:]
        if what == "wrong":
            rest = bytes(len(rest))
        h.send_response(code)
        h.send_header("Content-Type", "application/octet-stream")
        if code == 206:
            h.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        if what == "longer":
            rest = rest + b"x" * 5000
        h.send_header("Content-Length", str(len(rest)))
        h.end_headers()
        if what == "cut":
            h.wfile.write(rest[:len(rest) // 2])
            h.wfile.flush()
            h.connection.close()
            h.close_connection = True
            return None
        if what == "shorter":
            h.wfile.write(rest[:10])
            h.wfile.flush()
            h.close_connection = True
            return None
        if what == "stall":
            h.wfile.write(rest[:1000])
            h.wfile.flush()
            time.sleep(4)
            h.close_connection = True
            return None
        if what == "slow":
            for i in range(0, len(rest), 30000):
                h.wfile.write(rest[i:i + 30000])
                h.wfile.flush()
                time.sleep(0.1)
            return None
        h.wfile.write(rest)
        return None

    @staticmethod
    def send(h, code, body, headers=None):
        h.send_response(code)
        for k, v in (headers or {}).items():
            h.send_header(k, v)
        h.send_header("Content-Length", str(len(body)))
        h.end_headers()
        h.wfile.write(body)


@pytest.fixture
def hub():
    h = Hub()
    yield h
    h.server.shutdown()


def pull(hub, folder, name="me/model", env=None, timeout=60, **options):
    args = [LILY, "pull", name, "-o", str(folder), "--hub", hub.url, "--stall", "1"]
    clean = {k: v for k, v in os.environ.items() if "proxy" not in k.lower() and k not in ("HF_TOKEN", "SSL_CERT_FILE")}
    return subprocess.run(args, capture_output=True, cwd=ROOT, timeout=timeout, env={**clean, **(env or {})}, **options)


def assert_whole(folder, hub):
    wanted = {p for p in hub.files if not p.endswith(".png")}
    assert set(os.listdir(folder)) == wanted
    for p in wanted:
        assert (folder / p).read_bytes() == hub.files[p]


def test_all_wanted_files_come_whole_and_nothing_else(hub, tmp_path):
    r = pull(hub, tmp_path / "m")
    assert r.returncode == 0, r.stderr
    assert_whole(tmp_path / "m", hub)
    n = len(hub.requests)
    assert pull(hub, tmp_path / "m").returncode == 0  # all is there: only the listing is asked for
    assert len(hub.requests) == n + 1


@pytest.mark.parametrize("trouble", [["cut"], ["cut", "cut", "cut"], ["shorter"], ["stall"], ["mute"], [500, 503], [429],
                                     ["redirect"], ["cut", "ignore-range"]])
def test_a_troubled_transfer_ends_whole(hub, tmp_path, trouble):
    path = "model-00001-of-00002.safetensors"
    hub.plan[path] = list(trouble)
    r = pull(hub, tmp_path / "m")
    assert r.returncode == 0, r.stderr
    assert_whole(tmp_path / "m", hub)
    if "cut" in trouble:
        ranges = [q for p, q, _ in hub.requests if p.endswith(path) and q]
        assert ranges and ranges[0] != "bytes=0-"  # gone on with, not begun anew


@pytest.mark.parametrize("what, word", [(401, b"401"), (403, b"HF_TOKEN"), (404, b"404"), ("html", b"web page"),
                                        ("longer", b"expected 300000 bytes, the server announces 305000"), ("wrong", b"hash"),
                                        ("empty", b"expected 300000 bytes, the server announces 0")])
def test_a_hopeless_answer_ends_the_run_with_one_line(hub, tmp_path, what, word):
    path = "model-00002-of-00002.safetensors"
    hub.plan[path] = [what] * 20
    r = pull(hub, tmp_path / "m")
    assert r.returncode == 1 and word in r.stderr and path.encode() in r.stderr
    assert r.stderr.count(b"\n") == 1
    assert not (tmp_path / "m" / path).exists()
    hub.plan = {}
    assert pull(hub, tmp_path / "m").returncode == 0
    assert_whole(tmp_path / "m", hub)


def test_the_run_can_be_stopped_and_gone_on_with(hub, tmp_path):
    path = "model-00001-of-00002.safetensors"
    hub.plan[path] = ["slow"]
    clean = {k: v for k, v in os.environ.items() if "proxy" not in k.lower()}
    p = subprocess.Popen([LILY, "pull", "me/model", "-o", str(tmp_path / "m"), "--hub", hub.url], cwd=ROOT, env=clean,
                         stderr=subprocess.PIPE)
    part = tmp_path / "m" / (path + ".part")
    for _ in range(100):
        if part.exists() and part.stat().st_size > 30000:
            break
        time.sleep(0.05)
    p.send_signal(signal.SIGINT)
    assert p.wait(10) == 1 and b"go on" in p.stderr.read()
    assert part.exists()
    assert pull(hub, tmp_path / "m").returncode == 0
    assert_whole(tmp_path / "m", hub)
    assert any(q and q != "bytes=0-" for a, q, _ in hub.requests if a.endswith(path))


def test_the_token_goes_to_the_hub(hub, tmp_path):
    assert pull(hub, tmp_path / "m", env={"HF_TOKEN": "secret"}).returncode == 0
    assert all(a == "Bearer secret" for _, _, a in hub.requests)
    hub.requests.clear()
    assert pull(hub, tmp_path / "n").returncode == 0
    assert all(a is None for _, _, a in hub.requests)


def test_the_token_stays_with_the_hub(hub, tmp_path):
    """Neither another port nor another name of the same machine gets it."""
    other = Hub()
    other.files = hub.files
    try:
        for away in (other.url, other.url.replace("127.0.0.1", "localhost")):
            hub.away = away
            hub.plan["config.json"] = ["redirect away"]
            hub.requests.clear()
            other.requests.clear()
            folder = tmp_path / away[-15:].replace("/", "_")
            assert pull(hub, folder, env={"HF_TOKEN": "secret"}).returncode == 0
            assert_whole(folder, hub)
            assert [a for _, _, a in other.requests] == [None]
            assert all(a == "Bearer secret" for _, _, a in hub.requests)
    finally:
        other.server.shutdown()


@pytest.mark.parametrize("token", ["a\nX-Evil: 1", "a b", "\u00fc", "a\r"])
def test_a_token_that_is_none_is_not_sent(hub, tmp_path, token):
    r = pull(hub, tmp_path / "m", env={"HF_TOKEN": token})
    assert r.returncode == 2 and b"HF_TOKEN" in r.stderr and not hub.requests


@pytest.mark.parametrize("url", ["huggingface.co", "ftp://x", "file:///etc", "https", "http://" + "x" * 2000])
def test_a_hub_needs_its_scheme(tmp_path, url):
    class Odd:
        pass
    Odd.url = url
    r = pull(Odd, tmp_path / "m")
    assert r.returncode == 2 and b"--hub: expected http" in r.stderr and not (tmp_path / "m").exists()


@pytest.mark.parametrize("listing", [
    {"error": "x"}, [], [{"type": "file", "path": "../evil.json", "size": 1, "oid": "0" * 40}],
    [{"type": "file", "path": "a.json", "size": -1, "oid": "0" * 40}],
    [{"type": "file", "path": "a.json", "size": 1, "oid": "zz"}],
    [{"type": "file", "path": "a.json", "size": 2 ** 62, "oid": "0" * 40}],
])
def test_a_bad_listing_is_refused(hub, tmp_path, listing):
    hub.listing = listing
    r = pull(hub, tmp_path / "m")
    assert r.returncode == 1 and r.stderr.count(b"\n") == 1
    assert not (tmp_path / "evil.json").exists()


@pytest.mark.parametrize("what, word", [(401, b"401"), (403, b"HF_TOKEN"), (404, b"404"), ("html", b"web page")])
def test_a_refused_listing_says_so(hub, tmp_path, what, word):
    hub.plan["listing"] = [what]
    r = pull(hub, tmp_path / "m")
    assert r.returncode == 1 and word in r.stderr and r.stderr.count(b"\n") == 1
    assert len(hub.requests) == 1


def test_a_listing_that_comes_late_is_waited_for(hub, tmp_path):
    hub.plan["listing"] = [429, 503]
    begin = time.monotonic()
    assert pull(hub, tmp_path / "m").returncode == 0
    assert time.monotonic() - begin >= 1  # as Retry-After says
    assert_whole(tmp_path / "m", hub)


def test_a_file_that_stands_twice_in_the_listing_is_refused(hub, tmp_path):
    hub.listing = hub.entries() + hub.entries()
    r = pull(hub, tmp_path / "m")
    assert r.returncode == 1 and b"stands there twice" in r.stderr


# ---- the disk ----

def test_space_is_checked_before_anything_is_fetched(hub, tmp_path):
    hub.listing = hub.entries()
    hub.listing[2]["size"] = hub.listing[2]["lfs"]["size"] = 2 ** 50
    r = pull(hub, tmp_path / "m")
    assert r.returncode == 1 and b"1125899.9" in r.stderr and b" GB are needed" in r.stderr
    assert len(hub.requests) == 1 and not os.listdir(tmp_path / "m")


def test_a_write_that_fails_ends_the_run_and_can_be_gone_on_with(hub, tmp_path):
    path = "model-00001-of-00002.safetensors"
    r = pull(hub, tmp_path / "m", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (400000, 400000)))
    assert r.returncode == 1 and path.encode() in r.stderr and r.stderr.count(b"\n") == 1
    part = tmp_path / "m" / (path + ".part")
    assert part.stat().st_size == 400000 and part.read_bytes() == hub.files[path][:400000]
    hub.requests.clear()
    assert pull(hub, tmp_path / "m").returncode == 0
    assert_whole(tmp_path / "m", hub)
    assert [q for p, q, _ in hub.requests if p.endswith(path)] == ["bytes=400000-"]


def test_a_disk_that_fills_up_ends_the_run(hub, tmp_path):
    """Somebody else fills the disk after the check: a small file system of its own, 18 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=18m", "lily-test", disk], capture_output=True)
    if mounted.returncode:
        pytest.skip("file systems cannot be mounted here")
    try:
        path = "model-00001-of-00002.safetensors"
        hub.plan[path] = ["slow"]
        clean = {k: v for k, v in os.environ.items() if "proxy" not in k.lower() and k != "HF_TOKEN"}
        p = subprocess.Popen([LILY, "pull", "me/model", "-o", str(disk / "m"), "--hub", hub.url], cwd=ROOT, env=clean,
                             stderr=subprocess.PIPE)
        for _ in range(200):
            if (disk / "m" / (path + ".part")).exists():
                break
            time.sleep(0.02)
        with pytest.raises(OSError) as full, open(disk / "other", "wb", buffering=0) as f:
            while True:
                f.write(bytes(1 << 16))
        assert full.value.errno == errno.ENOSPC
        assert p.wait(30) == 1
        assert b"No space left on device" in p.stderr.read()
        os.unlink(disk / "other")
        assert pull(hub, disk / "m").returncode == 0
        assert_whole(disk / "m", hub)
    finally:
        subprocess.run(["umount", disk], check=True)


def test_two_runs_into_one_folder(hub, tmp_path):
    hub.plan["model-00001-of-00002.safetensors"] = ["slow"]
    clean = {k: v for k, v in os.environ.items() if "proxy" not in k.lower() and k != "HF_TOKEN"}
    p = subprocess.Popen([LILY, "pull", "me/model", "-o", str(tmp_path / "m"), "--hub", hub.url], cwd=ROOT, env=clean)
    for _ in range(200):
        if (tmp_path / "m" / "model-00001-of-00002.safetensors.part").exists():
            break
        time.sleep(0.02)
    r = pull(hub, tmp_path / "m")
    assert r.returncode == 1 and b"another run is writing into this folder" in r.stderr
    assert p.wait(30) == 0
    assert_whole(tmp_path / "m", hub)


# ---- the network ----

def test_a_proxy_from_the_environment_is_asked(hub, tmp_path):
    proxy = Hub()  # the path is then a whole URL of a host that is nowhere
    try:
        class Nowhere:
            url = "http://hub.invalid"
        r = pull(Nowhere, tmp_path / "m", env={"http_proxy": proxy.url})
        assert r.returncode == 0, r.stderr
        assert_whole(tmp_path / "m", proxy)
        assert all(p.startswith("http://hub.invalid/") for p, _, _ in proxy.requests)
        r = pull(hub, tmp_path / "n", env={"http_proxy": proxy.url, "no_proxy": "127.0.0.1"})
        assert r.returncode == 0 and hub.requests
    finally:
        proxy.server.shutdown()


needs_openssl = pytest.mark.skipif(not shutil.which("openssl"), reason="openssl is not installed")


@pytest.fixture
def certificate(tmp_path):
    """A certificate that signs itself, for two names."""
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", tmp_path / "key", "-out", tmp_path / "cert",
                    "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,DNS:hub.invalid"], check=True,
                   capture_output=True)
    return tmp_path / "cert"


def make_secure(hub, certificate):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.parent / "key")
    hub.server.socket = context.wrap_socket(hub.server.socket, server_side=True)
    hub.url = hub.url.replace("http://127.0.0.1", "https://localhost")


class Tunnel:
    """A proxy that knows CONNECT alone and leads every name to one port of this machine."""

    def __init__(self, port):
        self.heads = []
        self.status = b"200 Connection established"
        self.port = port
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                near, _ = self.socket.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self.connect, args=(near,), daemon=True).start()

    def connect(self, near):
        head = b""
        while b"\r\n\r\n" not in head:
            piece = near.recv(4096)
            if not piece:
                return
            head += piece
        self.heads.append(head.decode())
        near.sendall(b"HTTP/1.1 " + self.status + b"\r\n\r\n")
        if not self.status.startswith(b"200"):
            return near.close()
        far = socket.create_connection(("127.0.0.1", self.port))
        threading.Thread(target=self.copy, args=(near, far), daemon=True).start()
        return self.copy(far, near)

    @staticmethod
    def copy(source, target):
        try:
            while piece := source.recv(65536):
                target.sendall(piece)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # the other side has hung up


@needs_openssl
def test_a_certificate_that_nobody_signed_ends_the_run_at_once(hub, tmp_path, certificate):
    make_secure(hub, certificate)
    begin = time.monotonic()
    r = pull(hub, tmp_path / "m", env={"HF_TOKEN": "secret", "SSL_CERT_FILE": ""})
    assert r.returncode == 1 and b"certificate" in r.stderr and r.stderr.count(b"\n") == 1
    assert not hub.requests and time.monotonic() - begin < 20


@needs_openssl
@pytest.mark.parametrize("text", [None, b"", b"no certificate\n"])
def test_a_file_of_certificates_that_is_none_is_refused(hub, tmp_path, certificate, text):
    make_secure(hub, certificate)
    if text is not None:
        (tmp_path / "other").write_bytes(text)
    r = pull(hub, tmp_path / "m", env={"SSL_CERT_FILE": str(tmp_path / "other")})
    assert r.returncode == 1 and r.stderr.count(b"\n") == 1 and b"cert" in r.stderr.lower(), r.stderr
    assert not hub.requests


@needs_openssl
def test_https_and_its_redirects_with_certificates_of_our_own(hub, tmp_path, certificate):
    """From one HTTPS server to another the files come and the token does not; to plain HTTP nothing goes."""
    make_secure(hub, certificate)
    other, plain = Hub(), Hub()
    other.files = plain.files = hub.files
    make_secure(other, certificate)
    path = "model-00001-of-00002.safetensors"
    env = {"HF_TOKEN": "secret", "SSL_CERT_FILE": str(certificate)}
    try:
        hub.away = other.url
        hub.plan = {"config.json": ["redirect"], path: ["redirect away", "redirect away"]}
        other.plan[path] = ["cut"]
        r = pull(hub, tmp_path / "m", env=env)
        assert r.returncode == 0, r.stderr
        assert_whole(tmp_path / "m", hub)
        assert [p for p, _, _ in other.requests] == [f"/cdn/{path}"] * 2 and other.requests[1][1]  # gone on with
        assert {a for _, _, a in other.requests} == {None} and {a for _, _, a in hub.requests} == {"Bearer secret"}
        hub.away = plain.url
        hub.plan = {path: ["redirect away"] * 20}
        r = pull(hub, tmp_path / "n", env=env)
        assert r.returncode == 1 and path.encode() in r.stderr and r.stderr.count(b"\n") == 1, r.stderr
        assert not plain.requests and not (tmp_path / "n" / path).exists()
    finally:
        other.server.shutdown()
        plain.server.shutdown()


@needs_openssl
def test_https_through_a_proxy(hub, tmp_path, certificate):
    """The proxy is asked to connect, by name, and sees neither token nor path; the name's certificate is checked behind it."""
    make_secure(hub, certificate)
    proxy = Tunnel(hub.server.server_port)

    class Nowhere:
        url = "https://hub.invalid"
    env = {"https_proxy": proxy.url, "HF_TOKEN": "secret", "SSL_CERT_FILE": str(certificate)}
    r = pull(Nowhere, tmp_path / "m", env=env)
    assert r.returncode == 0, r.stderr
    assert_whole(tmp_path / "m", hub)
    assert proxy.heads and all(h.startswith("CONNECT hub.invalid:443 HTTP/1.1\r\n") for h in proxy.heads)
    assert not any("secret" in h or "uthorization" in h for h in proxy.heads)
    assert {a for _, _, a in hub.requests} == {"Bearer secret"}
    hub.requests.clear()

    class Wrong:
        url = "https://other.invalid"
    r = pull(Wrong, tmp_path / "n", env=env)
    assert r.returncode == 1 and b"certificate" in r.stderr and not hub.requests
    proxy.status = b"403 Forbidden"
    r = pull(Nowhere, tmp_path / "o", env=env, timeout=120)
    assert r.returncode == 1 and r.stderr.count(b"\n") == 1 and not hub.requests, r.stderr
    proxy.socket.close()


def test_progress_with_speed_and_time_left(hub, tmp_path):
    hub.plan["model-00001-of-00002.safetensors"] = ["slow"]
    hub.plan["config.json"] = [429]
    master, slave = pty.openpty()
    clean = {k: v for k, v in os.environ.items() if "proxy" not in k.lower() and k != "HF_TOKEN"}
    p = subprocess.Popen([LILY, "pull", "me/model", "-o", str(tmp_path / "m"), "--hub", hub.url], cwd=ROOT, env=clean, stderr=slave)
    os.close(slave)
    text = b""
    while select.select([master], [], [], 30)[0]:
        try:
            piece = os.read(master, 65536)
        except OSError:
            break
        text += piece
    os.close(master)
    assert p.wait(10) == 0
    lines = text.decode().replace("\r\n", "\n").split("\r\x1b[K")
    assert lines[-1] == f"4 files are whole in {tmp_path / 'm'}\n"
    speeds = [x for x in lines if re.fullmatch(r" *\d+\.\d% of 0\.00 GB, file \d of 4, \d+\.\d MB/s, \d+:\d\d left", x)]
    shares = [float(x.split("%")[0]) for x in speeds]
    assert len(speeds) > 3 and shares == sorted(shares)


def test_pinned_hashes_count_more_than_the_hub(hub, tmp_path):
    hub.files = {f"model-0000{i}-of-00004.safetensors": b"x" for i in range(1, 5)}
    r = pull(hub, tmp_path / "m", name="qwen3.6-35b-a3b")
    assert r.returncode == 1 and b"expected SHA-256 09f3e6ec" in r.stderr
    assert any("38740b847e4cb78f352aba30aa41c76e08e6eb46" in p for p, _, _ in hub.requests)


@pytest.mark.parametrize("name", ["", "one", "a/b/c", "../x", "a/b@../c", "a b/c", "/a", "a/"])
def test_a_bad_name_is_refused_before_anything_is_asked(hub, tmp_path, name):
    r = pull(hub, tmp_path / "m", name=name)
    assert r.returncode == 2 and b"expected a name" in r.stderr and r.stderr.count(b"\n") == 1
    assert not hub.requests


def test_no_server_at_all(tmp_path):
    class Nobody:
        url = "http://127.0.0.1:9"
    r = pull(Nobody, tmp_path / "m", timeout=60)
    assert r.returncode == 1 and r.stderr.count(b"\n") == 1
