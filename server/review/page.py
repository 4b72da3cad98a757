"""The local review page: loopback alone, Host and Origin checked, a session for whoever typed the code, a token in
every form. Nothing of it is written to a log.
"""

from __future__ import annotations

import hmac
import re
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from samebits.server.review.decide import decide
from samebits.server.review.listing import folder_of, proposals
from samebits.tools.report import review as pages
from samebits.tools.schema import reviews
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.proposals import open_proposal

if TYPE_CHECKING:
    from pathlib import Path

    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

    from samebits.server.review.door import Door

COOKIE = "samebits-review"
BODY_BYTES = 32_768
PROPOSAL = re.compile(r"/proposal/[A-Za-z0-9._-]+(/proposal)?")
HEADERS = {
    "content-security-policy": pages.policy(),
    "cache-control": "no-store",
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class Local:
    """Turns away what is not addressed to this page by its own name, and forms that come from elsewhere."""

    def __init__(self, app: ASGIApp, port: int) -> None:
        self.app = app
        self.hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost")}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            return
        found: dict[bytes, list[str]] = {}
        for name, value in scope["headers"]:
            found.setdefault(name, []).append(value.decode("latin-1"))
        host, origin = found.get(b"host", []), found.get(b"origin", [])
        length = (found.get(b"content-length") or ["0"])[0]
        refused = (
            (421, "not this page's name")
            if len(host) != 1 or host[0] not in self.hosts
            else (403, "a form of another page")
            if scope["method"] == "POST" and origin != [f"http://{host[0]}"]
            else (413, "too long")
            if not length.isdigit() or int(length) > BODY_BYTES or b"transfer-encoding" in found
            else None
        )
        if refused:
            await Response(refused[1], refused[0], HEADERS)(scope, receive, send)
            return
        await self.app(scope, receive, send)


class Pages:
    """The routes over one folder of jobs."""

    def __init__(self, jobs: Path, door: Door) -> None:
        self.jobs = jobs
        self.door = door

    def app(self, port: int) -> ASGIApp:
        """The ASGI application."""
        routes = [
            Route("/", self.index),
            Route("/unlock", self.unlock, methods=["POST"]),
            Route("/proposal/{id:path}", self.proposal),
            Route("/decide/{id:path}", self.decision, methods=["POST"]),
        ]
        return Local(Starlette(routes=routes), port)

    def token(self, request: Request) -> str | None:
        """The session's token; None for whoever has not typed the code."""
        return self.door.token(request.cookies.get(COOKIE))

    async def index(self, request: Request) -> Response:
        """The list."""
        if self.token(request) is None:
            return self.question(request)
        return html(pages.render_list(proposals(self.jobs), str(self.jobs)))

    def question(self, request: Request) -> Response:
        """The question for the code; it leads back to where the person wanted to go."""
        return html(pages.render_question(request.url.path), 401)

    async def unlock(self, request: Request) -> Response:
        """The code."""
        cookie, to = self.door.enter(await field(request, "code")), await field(request, "to")
        if cookie is None:
            return html(pages.render_question(to, "That is not the code in the terminal."), 401)
        response = RedirectResponse(to if PROPOSAL.fullmatch(to) else "/", 303, HEADERS)
        response.set_cookie(COOKIE, cookie, httponly=True, samesite="strict", path="/")
        return response

    async def proposal(self, request: Request) -> Response:
        """One proposal."""
        token = self.token(request)
        if token is None:
            return self.question(request)
        return self.show(request.path_params["id"], token)

    def show(self, id: str, token: str, *, note: str = "", error: str = "", status: int = 200) -> Response:
        """The page of a proposal, or why there is none."""
        try:
            proposal = open_proposal(folder_of(self.jobs, id))
            review = reviews.find(proposal)
        except UserError as problem:
            return html(pages.render_problem("This proposal cannot be shown", str(problem)), 409)
        return html(pages.render(proposal, review, id=id, token=token, note=note, error=error), status)

    async def decision(self, request: Request) -> Response:
        """Approve or reject."""
        token, id = self.token(request), request.path_params["id"]
        if token is None:
            return html(pages.render_question("", "Not decided: this page was closed in the meantime."), 401)
        given = await field(request, "token")
        choice, note = await field(request, "decision"), await field(request, "note")
        if not hmac.compare_digest(given.encode(), token.encode()):
            return html(pages.render_problem("Not decided", "this form is not of this session"), 403)
        if choice not in ("approved", "rejected"):
            return html(pages.render_problem("Not decided", "neither approved nor rejected"), 400)
        try:
            seen = await field(request, "proposal")
            decide(folder_of(self.jobs, id), seen, choice, note, "page")  # type: ignore[arg-type]
        except UserError as error:
            return self.show(id, token, note=note, error=f"Not decided: {error}", status=409)
        return RedirectResponse(f"/proposal/{id}", 303, HEADERS)


async def field(request: Request, name: str) -> str:
    """A field of a form; empty when it is not there."""
    body = (await request.body()).decode("ascii", errors="replace")
    return parse_qs(body, keep_blank_values=True, max_num_fields=10).get(name, [""])[0]


def html(text: str, status: int = 200) -> HTMLResponse:
    """A page with its headers."""
    return HTMLResponse(text, status, HEADERS)
