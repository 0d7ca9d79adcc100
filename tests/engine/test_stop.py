"""The server as a program: how it ends, and what it says when its port is gone."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from functools import partial

import pytest

from reference_engine import __main__ as command
from reference_engine.engine_thread import EngineThread
from reference_engine.errors import ConfigError
from reference_engine.server import Server

COMMAND = [sys.executable, "-m", "reference_engine", "--port", "0", "--threads", "1"]
LONG = {"prompt": "In the beginning", "max_tokens": 2000, "ignore_eos": True, "stream": True}


@contextmanager
def serving(*words):
    process = subprocess.Popen([*COMMAND, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process, re.search(r"http://\S+", process.stdout.readline())[0]
    finally:
        process.kill()
        process.communicate()


def stream(url, **fields):
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps({**LONG, **fields}).encode())
    response = urllib.request.urlopen(request)
    assert response.readline().startswith(b"data: {")
    return response


def test_sigterm_lets_a_stream_end_and_takes_no_new_connection():
    with serving() as (process, url), stream(url, max_tokens=300) as response:
        process.send_signal(signal.SIGTERM)
        time.sleep(0.1)
        port = int(url.rpartition(":")[2])
        with socket.socket() as late:
            refused = late.connect_ex(("127.0.0.1", port))
        rest = response.read()
        _, log = process.communicate(timeout=20)
    assert refused
    assert rest.endswith(b"data: [DONE]\n\n")
    assert process.returncode == 0
    assert "Traceback" not in log


def test_a_second_signal_leaves_at_once():
    with serving("--drain-timeout", "60") as (process, url), stream(url) as response:
        for number in (signal.SIGTERM, signal.SIGINT):
            process.send_signal(number)
            time.sleep(0.2)
        sent = time.monotonic()
        rest = response.read()
        _, log = process.communicate(timeout=20)
    assert time.monotonic() - sent < 10
    assert b"shut down before this request ended" in rest
    assert process.returncode == 1
    assert "Traceback" not in log


def test_a_port_that_another_server_takes_first_is_named(make_tiny_engine):
    """Both may bind it while they load their models; the second to listen is told."""
    args = command.build_parser().parse_args(["--port", "0"])
    listener = command._bind("127.0.0.1", 0)
    port = listener.getsockname()[1]
    start = partial(Server, EngineThread(make_tiny_engine), model_name="tiny")
    with listener, command._bind("127.0.0.1", port) as other:
        other.listen()
        with pytest.raises(ConfigError, match=rf"cannot listen on 127\.0\.0\.1 port {port}: Address already"):
            asyncio.run(command._listen(start, listener, args))


@pytest.mark.parametrize("rate", ["0", "-1", "many", "inf", "nan"])
def test_a_rate_limit_that_is_none_is_refused(rate, capsys):
    with pytest.raises(SystemExit) as caught:
        command.build_parser().parse_args(["--rate-limit", rate])
    assert caught.value.code == 2
    assert "is no rate" in capsys.readouterr().err
