"""The command line: `python -m reference_engine --model tiny`, `python -m reference_engine fetch NAME`.

Reads switches, builds the engine, serves until SIGTERM or Ctrl-C. stdout gets one line, once requests
are taken; everything else goes to stderr. torch is imported only when an engine is really built.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import math
import os
import re
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from reference_engine import __version__
from reference_engine.config import EngineConfig, Switches
from reference_engine.errors import ConfigError, EngineError
from reference_engine.model_config import ModelConfig

if TYPE_CHECKING:
    from reference_engine.server import Server

DESCRIPTION = """\
A small inference engine with OpenAI's API. TTFT is the time to first token: waiting for a slot, then
computing the prompt. TPOT is the time per output token after that: one step of the whole batch each.
"""
EPILOG = """\
Models: tiny (bundled, 3.4 million parameters, writes like Shakespeare and the King James Bible);
smollm2-135m (SmolLM2-135M-Instruct, Apache-2.0); a folder with config.json, *.safetensors and
tokenizer.json; a GGUF file; or an id of the Hugging Face hub (org/name). Families: Llama, Mistral,
Qwen2, Qwen3. What is fetched or converted is kept in $LLMBENCH_CACHE or ~/.cache/llmbench.

`python -m reference_engine fetch MODEL` fetches without serving, and prints where it lies.
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
    _add_model_switches(parser.add_argument_group("model and device"))
    _add_batching_switches(parser.add_argument_group("batching: who is computed when"))
    _add_cache_switches(parser.add_argument_group("KV cache: what is remembered"))
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
        "--rate-limit",
        type=_rate,
        metavar="N",
        help="requests a second that are taken, after a pause as many at once; the others get 429 and "
        "Retry-After (default: no limit)",
    )
    add(
        "--drain-timeout",
        type=float,
        default=30.0,
        metavar="S",
        help="seconds that running requests get to end after SIGTERM (default: %(default)s)",
    )
    add("--version", action="version", version=f"reference_engine {__version__}")


def _rate(text: str) -> float:
    """Requests a second, above zero."""
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not 0 < rate < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no rate; write requests a second, such as 10 or 0.5")
    return rate


def _add_model_switches(group: argparse._ArgumentGroup) -> None:
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
        help="most tokens of prompt and answer together (default: the model's own). No effect on speed as "
        "long as requests stay short; with --kv-cache contiguous it is what every sequence takes",
    )
    add(
        "--threads",
        type=int,
        metavar="N",
        help="CPU threads of the arithmetic (default: one a core; one in all for models below 20 million "
        "weights). More lowers both, up to the cores that are really free; beyond, both get much worse",
    )
    add(
        "--attention",
        choices=("fast", "plain"),
        default="fast",
        help="plain is the textbook, sequence by sequence, to check the fast one against; TPOT grows with "
        "every running sequence (default: %(default)s)",
    )


def _add_batching_switches(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--batching",
        choices=("continuous", "static"),
        default="continuous",
        help="continuous: a request joins as soon as there is room, and leaves when it ends. static: a batch "
        "is formed of those who wait, and nobody joins before its last has ended: TTFT grows by the rest of "
        "a batch, throughput falls with every place that stands empty (default: %(default)s)",
    )
    add(
        "--max-num-seqs",
        type=int,
        default=32,
        metavar="N",
        help="sequences computed together (default: %(default)s). More: those that would wait get a lower "
        "TTFT, and everyone a higher TPOT, as a step takes longer; throughput rises",
    )
    add(
        "--max-num-batched-tokens",
        type=int,
        metavar="N",
        help="most tokens in one step (default: 512 on a CPU, 2048 on a GPU; without chunks at least "
        "--max-model-len). Less: a running stream waits less for the prompts of others (TPOT tail), and "
        "prompts take more steps (TTFT)",
    )
    add(
        "--enable-chunked-prefill",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="compute a long prompt in pieces, each in a step with everyone's next token (default: on with a "
        "cache). Off: a prompt is one long step, and every running stream stands still for it: the worst "
        "ITL becomes the longest prompt's time, its own TTFT a little lower",
    )


def _add_cache_switches(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--kv-cache",
        choices=("paged", "contiguous", "none"),
        default="paged",
        help="paged: blocks as they are needed. contiguous: a slab of --max-model-len for every sequence, so "
        "fewer fit into the same memory and the others wait (TTFT). none: everything is computed again for "
        "every token, so that TPOT grows with the length (default: %(default)s)",
    )
    add(
        "--block-size",
        type=int,
        metavar="N",
        help="positions in a block (default: 64 on a CPU, 16 on a GPU). Smaller wastes less memory and finds "
        "more shared prefixes; larger makes TPOT a little lower",
    )
    add(
        "--enable-prefix-caching",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="keep the blocks of finished requests, and take them when a prompt begins the same (default: on "
        "with paged). TTFT falls by the part that is found; nothing else changes",
    )
    add(
        "--kv-cache-memory",
        type=_num_bytes,
        metavar="SIZE",
        help="memory of the cache, such as 512MB or 2GiB (default: a quarter of the machine's, on a GPU see "
        "below). Too little: requests wait (TTFT), or are preempted and computed again (TPOT tail)",
    )
    add(
        "--gpu-memory-utilization",
        type=float,
        default=0.9,
        metavar="SHARE",
        help="share of the GPU's memory for weights and cache together (default: %(default)s)",
    )


def _num_bytes(text: str) -> int:
    """`512MB`, `2GiB` or plain bytes."""
    units = {
        "": 1,
        "b": 1,
        "kb": 10**3,
        "mb": 10**6,
        "gb": 10**9,
        "tb": 10**12,
        "kib": 2**10,
        "mib": 2**20,
        "gib": 2**30,
        "tib": 2**40,
    }
    found = re.fullmatch(r"([0-9]*\.?[0-9]+)\s*([a-z]*)", text.strip().lower())
    if found is None or found[2] not in units or float(found[1]) <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write 512MB or 2GiB")
    return int(float(found[1]) * units[found[2]])


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
    from reference_engine.catalog import SMOLLM2, model_folder, smollm2_gguf

    parser = argparse.ArgumentParser(prog="python -m reference_engine fetch", description="Fetch a model.")
    parser.add_argument("name", help="smollm2-135m, an id of the hub, or a GGUF file to be converted")
    name = parser.parse_args(words).name
    _log_to_stderr()
    print(f"model {model_folder(name)}")
    if name == SMOLLM2:
        print(f"gguf {smollm2_gguf()}")
    return 0


def _log_to_stderr() -> None:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")


def _serve(args: argparse.Namespace) -> int:
    _log_to_stderr()
    from reference_engine.catalog import model_folder

    folder = model_folder(args.model)
    config = EngineConfig.resolve(ModelConfig.from_folder(folder), switches_of(args))
    listener = _bind(args.host, args.port)
    _wait_briefly_for_threads()
    from reference_engine.engine import Engine
    from reference_engine.engine_thread import EngineThread

    thread = EngineThread(partial(Engine.load, folder, config))
    from reference_engine.server import Server  # while the weights are read

    name = args.served_model_name or _public_name(args.model)
    start = partial(Server, thread, model_name=name, api_key=args.api_key, rate_limit=args.rate_limit)
    _ = thread.engine  # no server without an engine
    return asyncio.run(_listen(start, listener, args))


def _public_name(model: str) -> str:
    """A name or a hub id as it is; of a path the last part, without `.gguf`."""
    path = Path(model)
    return path.resolve().name.removesuffix(".gguf") if path.exists() else model


def switches_of(args: argparse.Namespace) -> Switches:
    """The engine's switches as the parser found them."""
    given = {field.name: getattr(args, field.name) for field in fields(Switches) if hasattr(args, field.name)}
    if given["dtype"] == "auto":
        given["dtype"] = "float32" if args.device == "cpu" else "bfloat16"
    return Switches(**given, num_threads=args.threads)


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


async def _listen(start: Callable[[], Server], listener: socket.socket, args: argparse.Namespace) -> int:
    from aiohttp import web

    stop, hurry, loop = asyncio.Event(), asyncio.Event(), asyncio.get_running_loop()

    def on_signal() -> None:
        """The first asks for an end, the second for one that does not wait; a third is not ours."""
        if stop.is_set():
            hurry.set()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    server = start()
    # handler_cancellation: a client that leaves cancels its handler, which frees its sequences.
    runner = web.AppRunner(server.app(), access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
    await runner.setup()
    site = web.SockSite(runner, listener)
    host, port = listener.getsockname()[:2]
    try:
        await site.start()
    except OSError as error:  # two servers may take a port, only one may listen
        await server.drain(0)
        await runner.cleanup()
        raise ConfigError(f"cannot listen on {host} port {port}: {error.strerror}") from None
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    gc.collect()
    gc.freeze()  # what is loaded stays: no collection has to walk through torch while streams wait
    print(f"reference_engine ready at {url} model={server.model_name}", flush=True)
    await stop.wait()
    await site.stop()
    is_clean = await server.drain(args.drain_timeout, hurry=hurry)
    await runner.cleanup()
    return 0 if is_clean or not hurry.is_set() else 1


if __name__ == "__main__":
    sys.exit(main())
