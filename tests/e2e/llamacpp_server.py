"""llama.cpp's own HTTP server on a GGUF file, in a process of its own: a server that nobody here wrote.

    python tests/e2e/llamacpp_server.py FILE.gguf [--port 0] [--slots 8] [--context 1024]

Needs the xllamacpp wheel. Prints `llama.cpp ready at http://…` once it listens, and serves until it is
terminated. `--context` counts tokens for each slot.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading

import xllamacpp


def serve(model: str, port: int, slots: int, context: int) -> xllamacpp.Server:
    """A running server."""
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.model_alias = {"smollm2-135m"}
    params.hostnames = ["127.0.0.1"]
    params.port = port
    params.n_parallel = slots
    params.n_ctx = slots * context
    params.n_gpu_layers = 0
    params.use_jinja = True
    params.verbosity = -1
    return xllamacpp.Server(params)


def main() -> None:
    """Serves until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--context", type=int, default=1024)
    args = parser.parse_args()
    server = serve(args.model, args.port, args.slots, args.context)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    sys.stdout.write(f"llama.cpp ready at {server.listening_address}\n")
    sys.stdout.flush()
    ended.wait()


if __name__ == "__main__":
    main()
