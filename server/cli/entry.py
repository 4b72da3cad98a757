"""The `samebits` command. `serve` starts without what the other commands load: a client waits for its first answer."""

from __future__ import annotations

import json
import os
import signal
import sys

EARLY = "stopped on request; nothing was started. Next: run the command again"


def stopped_early(*_: object) -> None:
    """Handler of Ctrl-C while the command line is being imported, where an exception would come from anywhere."""
    if "--json" in sys.argv[1:]:
        os.write(1, json.dumps({"state": "failed", "error": "user", "message": EARLY, "job": ""}).encode() + b"\n")
    os.write(2, f"error: {EARLY}\n".encode())
    os._exit(2)


def main() -> None:
    """Entry point."""
    signal.signal(signal.SIGINT, stopped_early)  # until guarded.run takes over
    if sys.argv[1:2] != ["serve"]:
        from samebits.server.cli.main import main as all_commands

        all_commands()
        return
    from samebits.server.cli import quick

    with quick.imports():
        import typer

        from samebits.server.cli import guarded, serve

        app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
        app.command()(serve.serve)
    guarded.run(lambda: app(args=sys.argv[2:], prog_name="samebits serve"))


if __name__ == "__main__":
    main()
