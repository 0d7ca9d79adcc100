"""What all tests share: reproducible property tests, and plugins tested in a pytest of their own."""

from __future__ import annotations

from hypothesis import settings

pytest_plugins = ["pytester"]

# A loaded machine must not fail a property by its clock; a failing example is printed as a line to paste.
settings.register_profile("llmbench", deadline=None, print_blob=True)
settings.load_profile("llmbench")
