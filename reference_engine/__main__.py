"""The command line: `python -m reference_engine --model tiny`, `python -m reference_engine fetch NAME`.

Reads switches, builds the engine, serves until SIGTERM or Ctrl-C. stdout gets one line, once requests
are taken; everything else goes to stderr. torch is imported only when an engine is really built.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING, cast

from reference_engine import __version__
from reference_engine.config import Device, Dtype, EngineConfig
from reference_engine.errors import ConfigError, EngineError
from reference_engine.model_config import ModelConfig

if TYPE_CHECKING:
    from reference_engine.engine import Engine

DESCRIPTION = """\
A small inference engine with OpenAI's API. TTFT is the time to first token: waiting for a slot, then
computing the prompt. TPOT is the time per output token after that: one step of the whole batch each.
"""
EPILOG = """\
Models: tiny (bundled, 3.4 million parameters, writes like Shakespeare and the King James Bible),
smollm2-135m (SmolLM2-135M-Instruct, Apache-2.0; fetched on first use into $LLMBENCH_CACHE or
~/.cache/llmbench), or a folder with config.json, *.safetensors and tokenizer.json (Llama family).

`python -m reference_engine fetch smollm2-135m` fetches without serving, and prints where the GGUF is.
"""


def build_parser() -> argparse.ArgumentParser:
    """All switches, each with what it does to TTFT and TPOT."""
    parser = argparse.ArgumentParser(
        prog="python -m reference_engine",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_server_switches(parser.add_argument_group("server (no effect on TTFT or TPOT)"))
    _add_engine_switches(parser.add_argument_group("engine"))
    return parser


def _add_server_switches(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    add("--port", type=int, default=8000, help="0 takes a free one and prints it (default: %(default)s)")
    add(
        "--served-model-name", metavar="NAME", help="name in the API (default: --model, or its folder's name)"
    )
    add("--api-key", metavar="KEY", help="ask for 'Authorization: Bearer KEY' (401 without)")
    add(
        "--drain-timeout",
        type=float,
        default=30.0,
        metavar="S",
        help="seconds that running requests get to end after SIGTERM (default: %(default)s)",
    )
    add("--version", action="version", version=f"reference_engine {__version__}")


def _add_engine_switches(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--model", default="tiny", help="see below (default: %(default)s); TTFT and TPOT grow with its size")
    add("--device", choices=("cpu", "cuda"), default="cpu", help="where to compute (default: %(default)s)")
    add(
        "--dtype",
        choices=("auto", "float32", "bfloat16", "float16"),
        default="auto",
        help="auto is float32 on cpu, bfloat16 on cuda. Half the bytes a weight can halve TPOT where the "
        "device multiplies it natively; most CPUs do not, and get slower in both",
    )
    add(
        "--max-model-len",
        type=int,
        metavar="N",
        help="most tokens of prompt and answer together (default: the model's own). Sizes the KV slots; no "
        "effect on speed as long as requests stay short",
    )
    add(
        "--max-num-seqs",
        type=int,
        default=32,
        metavar="N",
        help="sequences computed together, one KV slot each (default: %(default)s). More: those that would "
        "wait get a lower TTFT, and everyone a higher TPOT, as a step takes longer; throughput rises",
    )
    add(
        "--max-num-batched-tokens",
        type=int,
        metavar="N",
        help="most tokens in one step (default: 2048, or --max-model-len if that is more). Prompts are "
        "computed whole: more lets several start together (TTFT under bursts), but a step that computes "
        "prompts is long, and running streams feel it as one slow token (TPOT tail)",
    )
    add(
        "--threads",
        type=int,
        metavar="N",
        help="CPU threads of the arithmetic (default: one a core; one in all for models below 20 million "
        "weights). More lowers both, up to the cores that are really free; beyond, both get much worse",
    )


def main(argv: list[str] | None = None) -> int:
    """Run and return the exit code: 0 after a clean stop, 2 for anything the user can mend."""
    words = sys.argv[1:] if argv is None else argv
    try:
        if words[:1] == ["fetch"]:
            return _fetch(words[1:])
        return _serve(build_parser().parse_args(words[1:] if words[:1] == ["serve"] else words))
    except EngineError as error:
        print(f"reference_engine: {error}", file=sys.stderr)
        return 2


def _fetch(words: list[str]) -> int:
    from reference_engine.catalog import SMOLLM2, fetch_smollm2, smollm2_gguf

    parser = argparse.ArgumentParser(prog="python -m reference_engine fetch", description="Fetch a model.")
    parser.add_argument("name", choices=(SMOLLM2,))
    parser.parse_args(words)
    _log_to_stderr()
    folder = fetch_smollm2()
    print(f"model {folder}\ngguf {smollm2_gguf()}")
    return 0


def _log_to_stderr() -> None:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")


def _serve(args: argparse.Namespace) -> int:
    _log_to_stderr()
    from reference_engine.catalog import model_folder

    folder = model_folder(args.model)
    config = EngineConfig.resolve(
        ModelConfig.from_folder(folder),
        max_model_len=args.max_model_len,
        max_num_seqs=args.max_num_seqs,
        max_num_batched_tokens=args.max_num_batched_tokens,
        device=args.device,
        dtype=_dtype(args.dtype, args.device),
        num_threads=args.threads,
    )
    listener = _bind(args.host, args.port)
    _wait_briefly_for_threads()
    from reference_engine.engine import Engine

    name = args.served_model_name or (args.model if args.model != str(folder) else folder.resolve().name)
    engine = Engine.load(folder, config)
    return asyncio.run(_listen(engine, name, listener, args))


def _dtype(dtype: str, device: Device) -> Dtype:
    if dtype != "auto":
        return cast(Dtype, dtype)
    return "float32" if device == "cpu" else "bfloat16"


def _wait_briefly_for_threads() -> None:
    """Let a thread of the arithmetic that waits for another sleep soon, not after milliseconds.

    libgomp spins by default as if the machine were its own. Beside a load generator on two cores the
    spinning thread holds the very core that the one it waits for needs: steps took up to ten times as
    long. Read by libgomp when torch is imported, hence from the environment, where the user may have
    decided otherwise.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "20000")


def _bind(host: str, port: int) -> socket.socket:
    """Take the port before the model is loaded: a port in use is known at once.

    It listens only later, so that nobody can connect before requests are taken.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except (OSError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"cannot listen on {host} port {port}: {reason}") from None
    return listener


async def _listen(engine: Engine, name: str, listener: socket.socket, args: argparse.Namespace) -> int:
    from aiohttp import web

    from reference_engine.server import Server

    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    server = Server(engine, model_name=name, api_key=args.api_key)
    # handler_cancellation: a client that leaves cancels its handler, which frees its sequence.
    runner = web.AppRunner(server.app(), access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
    await runner.setup()
    site = web.SockSite(runner, listener)
    await site.start()
    host, port = listener.getsockname()[:2]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    print(f"reference_engine ready at {url} model={name}", flush=True)
    await stop.wait()
    for number in (signal.SIGTERM, signal.SIGINT):  # a second signal does not wait
        loop.remove_signal_handler(number)
    await site.stop()
    await server.drain(args.drain_timeout)
    await runner.cleanup()
    return 0


if __name__ == "__main__":
    sys.exit(main())
