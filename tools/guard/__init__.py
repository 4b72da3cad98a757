"""The one line of a training loop that keeps an aligned pair of sides aligned."""

from samebits.tools.guard.guard import Guard, NotExact

__all__ = ["Guard", "NotExact"]
