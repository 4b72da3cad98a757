"""`samebits review`: a person looks at proposals, on a local page or in the terminal, and decides."""

from __future__ import annotations

from typing import Annotated

import typer

from samebits.server.jobs.links import JOBS


def review(
    proposal: Annotated[
        str,
        typer.Argument(
            help="JOB/proposal, or its folder: review it here in the terminal. Without it: on a local page."
        ),
    ] = "",
    page: Annotated[bool, typer.Option("--page", help="Open this one proposal on the page.")] = False,
    port: Annotated[
        int, typer.Option(help="Port of the page on loopback (default: a free one).", min=0, max=65535)
    ] = 0,
    browser: Annotated[bool, typer.Option(help="Open the desktop's browser, where there is one.")] = True,
) -> None:
    """Look at proposals, and approve or reject them: on a local page, or with JOB/proposal in this terminal."""
    from samebits.server.review.listing import folder_of, id_of
    from samebits.server.review.terminal import review_here, terminal

    jobs = JOBS.resolve()
    proposal = id_of(jobs, proposal) if proposal else ""
    if proposal and not page:
        raise typer.Exit(review_here(folder_of(jobs, proposal), proposal))
    with terminal() as tty:
        from samebits.server.review.serve import serve

        if proposal:
            folder_of(jobs, proposal)
        serve(jobs, tty, port=port, path=f"proposal/{proposal}" if proposal else "", browser=browser)
