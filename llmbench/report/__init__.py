"""From columns to what a person or a program reads: summary.json, terminal, Markdown, the run folder."""
