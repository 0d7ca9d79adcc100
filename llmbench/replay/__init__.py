"""A run as it happens: when to send, what came back, what is on disk, what a person sees meanwhile.

`reach`           is the target there, what is it, how does it count
`identity`        what is fixed about a run before its first request
`session`         a run from its first request to its last record
`sending`         a plan, or a share of it, on an event loop: transport, runner, journals
`crew`            several workers from their parent's side (`worker_process`: one of them)
`worker`          the program of a worker (`assignment`: what it is told, `lines`: how it listens)
`facts`           what a run was like, beyond its records
`interrupts`      Ctrl-C and SIGTERM, once and twice, at every moment of a run
`runner`          sends what the plan says and turns every exchange into a record
`alarm`           waking at an absolute instant
`slices`          decoding and rendering between socket reads
`journal`         records on disk as requests end
`tally`           counts and running percentiles for the live view, the timeline's rows
`engine_process`  the bundled engine as a child, for the run's length
`live`            the live view
"""
