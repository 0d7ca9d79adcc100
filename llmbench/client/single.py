"""One prompt, sent once over the fast transport: the hot path of a run without a plan."""

from __future__ import annotations

import asyncio
from functools import partial

from llmbench.client.choose import choose, make_transport, proxy_for, tls_context
from llmbench.client.control import Advice, Control
from llmbench.client.decode import decode
from llmbench.client.exchange import Exchange, Timeouts, Transport
from llmbench.client.to_record import fill_record
from llmbench.client.wire import Api, BodyStyle, Destination, render_body, request_headers
from llmbench.errors import UsageError
from llmbench.records import Outcome, RequestRecord
from llmbench.scenario.address import mask_address, parse_address
from llmbench.scenario.masking import scrub, scrub_list, secrets_in

_READY_TIMEOUT_S = 5.0
_ADVICE = Advice(
    unreachable="Start it, or try one that needs no model:  llmbench mock",
    refused="Give the key: measure(url, prompt, api_key=...)",
    nameless="Name it: measure(url, prompt, model=...)",
    key_refused="The key was refused; give this server's: measure(url, prompt, api_key=...)",
)


def measure_once(
    url: str,
    prompt: str,
    *,
    max_tokens: int,
    model: str = "auto",
    api: Api = "chat",
    api_key: str | None = None,
    timeout_s: float = 120.0,
) -> tuple[str, RequestRecord]:
    """The model that answered and the request's record, text included.

    Connects before the clock starts. Raises UsageError for a URL that is none, TargetUnreachable when
    nothing answers, TargetRefused when the key or the model is refused.
    """
    try:
        address = parse_address(url)
    except ValueError as error:
        raise UsageError(f"{mask_address(url)}: {error}") from None
    if address.authorization is not None and api_key is not None:
        raise UsageError(f"{mask_address(url)}: user:password@ and api_key exclude each other; keep one")
    extra = {} if address.authorization is None else {"Authorization": address.authorization}
    destination = Destination(
        address=address,
        api=api,
        headers=request_headers(api_key=api_key, extra=extra, stream=True, agent="llmbench"),
    )
    return asyncio.run(_measure(destination, prompt, max_tokens, model, api_key, timeout_s))


async def _measure(
    destination: Destination, prompt: str, max_tokens: int, model: str, api_key: str | None, timeout_s: float
) -> tuple[str, RequestRecord]:
    tls = tls_context(destination.address, verify=True)
    async with Control(
        destination, tls=tls, timeout_s=timeout_s, proxy=proxy_for(destination.address), advice=_ADVICE
    ) as control:
        info = await control.describe(await control.wait_ready(_READY_TIMEOUT_S), model)
    style = BodyStyle(api=destination.api, model=info.model, extra={})
    payload = render_body(style, prompt=prompt, max_tokens=max_tokens)
    transport = make_transport(
        choose("auto", destination.address),
        destination,
        Timeouts(total_s=timeout_s, no_progress_s=timeout_s),
        tls,
    )
    await transport.open(1)
    try:
        exchange = await _exchange(transport, destination, payload)
    finally:
        await transport.close()
    record = RequestRecord(index=0, phase="measure", outcome=Outcome.OK, output_tokens_asked=max_tokens)
    fill_record(
        record,
        exchange,
        decode(exchange, destination.api),
        epoch_ns=exchange.start_ns,
        scrub=partial(scrub, secrets=scrub_list(secrets_in(dict(destination.headers)))),
        save_text=True,
    )
    return info.model, record


async def _exchange(transport: Transport, destination: Destination, payload: bytes) -> Exchange:
    ended: asyncio.Future[Exchange] = asyncio.get_running_loop().create_future()
    transport.send(destination.frame(0, "measure-0", payload), ended.set_result)
    return await ended
