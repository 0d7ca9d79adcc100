"""How far the instrument's figures are from the truth, on this machine and at this load.

    a run's records ─▶ shape ─▶ cached? ─no─▶ the same shape against the null target, whose true send times
                                                are known ─▶ reported beside true, request by request
                                   │                                 │
                                   └──────────▶ errors ◀─────────────┘   ± in the run's summary

The null target is the bundled mock, a process of its own. Nothing here sends to the run's own target.

    shape        what of a load makes an instrument late, and how to replay it
    error        from pairs of reported and true times to bounds
    known        what was found
    null_target  the mock as a process, and its log
    cache        what is known already of this machine
    of_run       the flow, for a run that has ended
"""

from __future__ import annotations

from llmbench.calibration.of_run import Calibrated, calibrate

__all__ = ["Calibrated", "calibrate"]
