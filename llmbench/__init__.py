"""llmbench: load tests for OpenAI-compatible LLM endpoints.

The public names are imported on first use, so that `import llmbench` costs nothing.
"""

from __future__ import annotations

__version__ = "0.1.0"
