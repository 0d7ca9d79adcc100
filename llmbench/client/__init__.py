"""The edge to the server: requests rendered to bytes, sent, and every arriving byte stamped.

    RequestSpec ─wire─▶ Outgoing (bytes) ─transport─▶ Exchange (raw reads, stamps)
        ─decode─▶ Answer ─to_record─▶ RequestRecord

`exchange`           the raw capture of one request and the seam every transport fills
`sse`                bytes in, server-sent events out; no I/O
`decode`             a finished Exchange to what the server said and when (`stream`, `usage`, `body`,
                     `answer` are its parts); no I/O
`to_record`          an Answer into the request's record; no I/O
`wire`               a request's bytes for the chat, completions and responses APIs; no I/O
`address`            base URL to host, port, path, TLS; no I/O
`http1`              the fast transport: asyncio protocol on httptools
`aiohttp_transport`  the same seam on aiohttp: proxies, and the oracle for `http1`
`httpx_transport`    the same seam on httpx: HTTP/2
`choose`             which of them carries a run
`control`            off the hot path: readiness, models, server traits, token counts
`single`             one prompt, measured
"""
