"""The one error of the adapters."""

from __future__ import annotations


class PatchError(Exception):
    """A model, table or call the patch engine does not know. Raised at start-up wherever that is possible.

    Args:
        thing: what cannot be used, named as the user knows it (a module path, a role, a setting).
        reason: why not.
        next_step: what to do now.
    """

    def __init__(self, thing: str, reason: str, next_step: str) -> None:
        super().__init__(f"{thing}: {reason}. Next: {next_step}")
        self.thing = thing
        self.reason = reason
        self.next_step = next_step
