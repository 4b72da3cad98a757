"""The `samebits` command. `serve` starts without what the other commands load: a client waits for its first answer."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point."""
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
