"""A small inference engine that can be read in an hour: PyTorch, paged KV cache, continuous batching,
OpenAI's API.

The life of a request:

1. `server` reads a body; `protocol` checks it and turns it into sampling parameters; `tokenizer` turns
   text or a conversation into token ids. What can never be served is refused here, with the numbers.
2. `engine_thread` passes it to the thread in which the engine lives. `engine.add` queues it.
3. Each `engine.step`: `scheduler` plans which tokens to compute (one for every sequence that decodes,
   then as much of the prompts as the step has room for), `runner` computes them in one pass, one new
   token for each sequence whose prompt is complete comes out, `scheduler.commit` records it.
4. In that pass `model` computes all tokens as the rows of one matrix; only `attention` knows which
   rows belong together. It writes keys and values to the blocks of `kv_cache` that `blocks` gave out,
   and reads those of earlier steps. `sampling` chooses from the logits of the last rows.
5. `tokenizer` turns tokens into text, never half a character, never part of a stop string.
6. All tokens of a step go back to the event loop at once; each that shows text becomes an event.
7. A sequence ends by its end token, a stop string, its length, or because its client left; its blocks
   are free for the next step, and are remembered until they are needed. When there are too few, the
   last in order gives its blocks back and is computed again later.

One line a module, in reading order:

    types          the plain values that the parts exchange
    model_config   the shape of a network, from its config.json
    config         what the user allows the engine
    sequence       the one mutable state of a living request
    blocks         who holds which block of the KV cache; what is remembered of prefixes
    scheduler      who computes what in the next step; no tensors
    model          the decoder; attention is an argument; rope: rotary positions
    kv_cache       keys and values, in blocks
    attention      how the rows of a step attend: the textbook, and fast
    sampling       logits to tokens, each row for itself
    runner         a plan in, tokens out
    memory         how much a KV cache may take
    tokenizer      text in, ids out and back, incrementally; stop strings; chat template
    engine         the page that shows the whole: add, abort, step
    engine_thread  the engine's thread and its inboxes
    protocol       OpenAI's bodies in
    answers        its answers, chunks and errors out; token_text: the bytes of single tokens
    access         keys, rate limit, one shape for all errors
    metrics        counters and histograms under vLLM's names
    server         HTTP and server-sent events
    weights        checkpoints in Hugging Face's layout
    gguf           reads GGUF files; gguf_convert and gguf_tokenizer make such a folder of one
    catalog        models by name, path or hub id; hub fetches; listing says what is there
    errors         every error raised on purpose
    __main__       switches

`models/tiny` is a small model that comes along, `models/train_tiny` the script that made it.
"""

__version__ = "0.1.0"
