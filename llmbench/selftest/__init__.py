"""Whether the instrument is good on this machine: what is known beside what it measures.

Every case is a run of the product, against a server of ours in a process or thread of its own, whose
schedule, tokens and times are known. Then the machine's ceilings: how much of a load can be measured here.

    check      one expectation and what was measured; the table
    measured   a run of the product and what its null target logged
    schedule   sends on time; a stall of the server; an overloaded client; a buffering proxy
    tokens     who counts what
    times      TTFT and ITL against the server's own log
    corpus     difficult streams, byte by byte, and what they amount to;  `scripted` serves them
    ceilings   events, requests and streams
    suite      all of it, in order, within a minute
"""
