from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.llmbench.make_big_run import make_big_run

ROOT = Path(__file__).parents[2]

# Not ru_maxrss: a child inherits it from the process that started it, which here may have held a model.
REPORT = """
import sys
from pathlib import Path
from llmbench.cli.app import main
code = main(["report", sys.argv[1]])
(peak,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
print(peak.split()[1], file=sys.stderr)  # KiB
sys.exit(code)
"""


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.parametrize(("num_events", "tokens_per_event"), [(200, 1), (120, 2)])
def test_two_hundred_thousand_requests_report_in_a_minute_within_two_gigabytes(
    tmp_path: Path, num_events, tokens_per_event
):
    folder = make_big_run(tmp_path, num_events=num_events, tokens_per_event=tokens_per_event)
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", REPORT, str(folder.path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    elapsed_s = time.monotonic() - start
    assert done.returncode == 0, done.stderr
    assert "199,600 ok" in done.stdout
    peak_mb = int(done.stderr.split()[-1]) / 1024
    assert elapsed_s < 60
    assert peak_mb < 2000
