# SPDX-License-Identifier: Apache-2.0
"""What ./start shows: a right answer, then a server whose printed request works as printed."""
import os
import signal
import socket
import subprocess
import time

from conftest import LILY, ROOT


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def test_the_first_answer_is_right_and_the_printed_request_works(tmp_path):
    port = free_port()
    log = tmp_path / "log"
    with open(log, "wb") as out:
        p = subprocess.Popen(["sh", "tools/first_answer.sh"], cwd=ROOT, stdout=out, stderr=subprocess.STDOUT,
                             env={**os.environ, "LILY": LILY, "LILY_PORT": str(port)})
    try:
        for _ in range(600):
            if b"ready" in log.read_bytes() or p.poll() is not None:
                break
            time.sleep(0.1)
        text = log.read_text()
        assert p.poll() is None, text
        assert "> What is 12 + 30?" in text and "42" in text.split("> What is 12 + 30?")[1]
        command = next(line for line in text.splitlines() if line.startswith("curl "))
        done = subprocess.run(["sh", "-c", command.replace("curl -s", "curl -s --noproxy '*'")], capture_output=True, text=True)
        assert "Paris" in done.stdout, done
    finally:
        p.send_signal(signal.SIGTERM)
        assert p.wait(30) == 0
