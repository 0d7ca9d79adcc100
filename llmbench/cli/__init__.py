"""The command line: one module a command, named like it.

`llmbench/cli/<name>.py` holds a function `command` whose parameters are Typer options and whose docstring
is the help text. `app.py` lists the commands and imports a module only when its command is called. A command
prints its result to stdout and everything else to stderr; it ends by returning (exit code 0), by
`raise typer.Exit(code)`, or by raising an `LlmbenchError`, which `app.py` turns into message and exit code.
"""
