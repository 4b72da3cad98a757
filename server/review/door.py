"""Who may decide: whoever typed the code that stands in one terminal. One code, few tries, one session at a time."""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

LETTERS = "23456789ABCDEFGHJKMNPQRSTVWXYZ"
"""No two look alike."""
CODE_LETTERS = 8
TRIES = 5
"""Wrong codes before another one is made: 30^8 codes are not guessed five at a time."""


def new_code() -> str:
    """Eight letters, in two groups."""
    letters = [secrets.choice(LETTERS) for _ in range(CODE_LETTERS)]
    return "".join(letters[:4]) + "-" + "".join(letters[4:])


@dataclass(slots=True)
class Door:
    """The code and the sessions of one `samebits review`.

    Args:
        show: writes a code to the person's terminal. Called again when too many wrong ones were tried.
    """

    show: Callable[[str], None]
    _code: str = ""
    _wrong: int = 0
    _sessions: dict[str, str] = field(default_factory=dict)
    """Cookie -> token of its forms."""

    def renew(self) -> None:
        """Make a code and show it."""
        self._code, self._wrong = new_code(), 0
        self.show(self._code)

    def enter(self, typed: str) -> str | None:
        """The cookie of a new session for the right code. A code opens once."""
        letters = "".join(typed.upper().split()).replace("-", "")
        right = bool(self._code) and hmac.compare_digest(letters.encode(), self._code.replace("-", "").encode())
        if right:
            cookie = secrets.token_urlsafe(32)
            self._sessions[cookie] = secrets.token_urlsafe(32)
            self.renew()
            return cookie
        self._wrong += 1
        if self._wrong >= TRIES:
            self.renew()
        return None

    def token(self, cookie: str | None) -> str | None:
        """The token of a session's forms; None: no such session."""
        return self._sessions.get(cookie) if cookie else None
