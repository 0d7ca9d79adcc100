"""The programs that tests run: the command line in a folder of its own, and a scenario to start from."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LLMBENCH = [sys.executable, "-m", "llmbench"]
# What `llmbench run` ends with when it could measure. On a busy machine the short runs of these tests may
# rightly be called INVALID (97: the client was late); where the code itself is tested, the server is so slow
# that it does not matter.
MEASURED = (0, 97)

API_KEY = "sk-e2e-4f1d9c0b7a"

SCENARIO = """
    name: e2e
    target:
      url: ${LLMBENCH_URL}
      api_key: ${E2E_API_KEY:-}
      ready_timeout: 500ms
    load:
      arrivals: constant
      rate: 40/s
      requests: 20
    workload:
      kind: inline
      prompts: [Say hello., Say goodbye.]
      output_tokens: 8
"""


@dataclass(frozen=True)
class Bench:
    """A folder with `scenario.yaml` in it, and the command line to run there."""

    folder: Path
    url: str | None = None

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*LLMBENCH, *arguments],
            cwd=self.folder,
            env=self.environment(**environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
        )

    def __call__(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        with self.start(*arguments, **environment) as process:
            try:
                stdout, stderr = process.communicate(timeout=300)
            finally:
                process.kill()
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)

    def environment(self, **more: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("LLMBENCH_")}
        return {**kept, **({"LLMBENCH_URL": self.url} if self.url else {}), **more}

    def write(self, scenario: str, name: str = "scenario.yaml") -> None:
        (self.folder / name).write_text(textwrap.dedent(scenario), encoding="utf-8")

    @property
    def run_folders(self) -> list[Path]:
        return sorted((self.folder / "reports").glob("*"))

    @property
    def run_folder(self) -> Path:
        (folder,) = self.run_folders
        return folder

    def summary(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((self.run_folder / "summary.json").read_text(encoding="utf-8"))
        return document
