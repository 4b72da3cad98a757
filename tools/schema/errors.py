"""The one error a user sees for a user's mistake."""

from __future__ import annotations


class UserError(Exception):
    """A mistake or a missing thing on the user's side: shown as one message, exit code 2, no traceback.

    Args:
        thing: what is wrong, named as the user knows it (a path, a key, a tensor).
        reason: why it cannot be used.
        next_step: what to do now.
    """

    def __init__(self, thing: str, reason: str, next_step: str) -> None:
        super().__init__(f"{thing}: {reason}. Next: {next_step}")
        self.thing = thing
        self.reason = reason
        self.next_step = next_step

    def __reduce__(self) -> tuple[type[UserError], tuple[str, str, str]]:
        """Whole also after it came from another process."""
        return UserError, (self.thing, self.reason, self.next_step)
