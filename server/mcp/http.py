"""Serving over HTTP: one bearer token, loopback unless told, Host and Origin checked."""

from __future__ import annotations

import errno
import hmac
import ipaddress
import secrets
import socket
from typing import TYPE_CHECKING

from mcp.server.transport_security import TransportSecuritySettings

from samebits.tools.schema.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

    from starlette.types import ASGIApp, Receive, Scope, Send

    from samebits.server.mcp.app import Samebits

TOKEN_CHARS = 16
"""A shorter token is refused."""
BACKLOG = 2048
HTTP_PORT = 80
"""Left out of Host headers."""


class BearerOnly:
    """Answers 401 to every request without the token, whatever its path."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self.app = app
        self.expected = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One connection."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        given = [value for name, value in scope.get("headers", ()) if name == b"authorization"]
        scheme, _, value = given[0].partition(b" ") if len(given) == 1 else (b"", b"", b"")
        # The scheme's case does not count (RFC 9110, 11.1), nor do further spaces.
        known = scheme.lower() == b"bearer" and hmac.compare_digest(value.strip(b" "), self.expected)
        if scope["type"] == "http" and known:
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            headers = [(b"www-authenticate", b'Bearer realm="samebits"'), (b"content-length", b"0")]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": b""})


def token_of(file: Path | None) -> tuple[str, bool]:
    """The token of a file, or a fresh one; and whether it is fresh.

    Raises:
        UserError: the file cannot be read, others can read it, or its token is short.
    """
    if file is None:
        return secrets.token_urlsafe(32), True
    try:
        mode, text = file.stat().st_mode, file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            str(file), f"no token can be read: {error}", "give --token-file a file with one line"
        ) from error
    if mode & 0o077:
        raise UserError(str(file), "others can read it", f"chmod 600 {file}")
    if len(text) < TOKEN_CHARS or text != "".join(text.split()):
        raise UserError(str(file), f"not one word of at least {TOKEN_CHARS} characters", "write a longer token into it")
    return text, False


def security_of(host: str, port: int, allowed: tuple[str, ...]) -> TransportSecuritySettings:
    """Host and Origin checks: the names of this machine at this port, and those that are allowed. The SDK's own checks
    know only some names of loopback, so they are never left to it.

    Raises:
        UserError: an address beyond loopback without the names clients use for it.
    """
    if not is_loopback(host) and not allowed:
        raise UserError(
            f"--host {host}", "reaches beyond this machine", "add --allow-host NAME:PORT as clients name it"
        )
    own = dict.fromkeys(("127.0.0.1", "localhost", "[::1]", *((_named(host),) if is_loopback(host) else ())))
    hosts = [*(f"{name}:{port}" for name in own), *(own if port == HTTP_PORT else ()), *allowed]
    origins = [f"{scheme}://{name}" for name in hosts for scheme in ("http", "https")]
    return TransportSecuritySettings(allowed_hosts=hosts, allowed_origins=origins)


def _named(host: str) -> str:
    """As it stands in a Host header."""
    return f"[{host}]" if ":" in host else host


def is_loopback(host: str) -> bool:
    """Whether an address is this machine's own."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def listen(host: str, port: int) -> list[socket.socket]:
    """Sockets that listen, one per address of the host, all at one port; 0: a free one.

    Raises:
        UserError: no such host, or the port is taken.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise UserError(f"--host {host}", error.strerror or str(error), "give an address of this machine") from error
    sockets: list[socket.socket] = []
    problem = OSError("no address")
    for family, address in dict.fromkeys((entry[0], entry[4]) for entry in found):
        try:
            sock = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            problem = error
            continue
        sockets.append(sock)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind((address[0], port, *address[2:]))
            sock.listen(BACKLOG)
            port = sock.getsockname()[1]
        except OSError as error:
            problem = error
            sockets.pop().close()
            if error.errno != errno.EADDRNOTAVAIL:  # a name may have addresses that this machine lacks
                break
    else:
        if sockets:
            return sockets
    for sock in sockets:
        sock.close()
    reason = problem.strerror or str(problem)
    raise UserError(f"--host {host} --port {port}", reason, "give another --port or --host") from problem


async def serve_http(
    server: Samebits,
    *,
    host: str,
    sockets: list[socket.socket],
    token: str,
    security: TransportSecuritySettings,
) -> None:
    """Serve until stopped."""
    import uvicorn

    app = server.streamable_http_app(host=host, transport_security=security)
    config = uvicorn.Config(BearerOnly(app, token), log_level="warning", access_log=False)
    await uvicorn.Server(config).serve(sockets=sockets)
