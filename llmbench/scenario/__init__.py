"""Scenarios: what to send, how fast, and what counts as good; read from YAML, typed, checked."""
