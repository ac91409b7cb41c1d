"""Every exception of the bridge.

BridgeError
├── TransientError            ours to retry: nothing is known to be wrong with the request
│   ├── Unreachable           refused, reset before it was sent: the request did not arrive
│   ├── UnknownOutcome        sent, and no usable answer: it may have happened
│   ├── Busy                  the other side asks for patience (429, 503, lock); may carry a delay
│   └── StaleView             our own picture is too old to answer from
├── RefusedError              theirs to fix: the other side understood and said no
│   ├── NotFound              the object, not the route
│   ├── Conflict              already there, wrong UID, precondition failed
│   ├── Invalid               the request cannot work as written
│   ├── Denied                token or rights
│   └── Gone                  watch history expired (410): list again
├── ProtocolError             an answer that no version of the other side should give (HTML, truncated JSON)
└── UserError                 a manifest or configuration is wrong: names object, field and fix
    └── ConfigError

Adapters translate foreign exceptions here, once, with `from`. Callers branch on class and `code`, never on text.
"""

from __future__ import annotations

from typing import Self

BODY_LIMIT = 300  # characters of a foreign body that may reach a log


def trim(text: str, limit: int = BODY_LIMIT) -> str:
    """One line of at most `limit` characters, so a 30 MB answer can't fill a log."""
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


class BridgeError(Exception):
    """Base of all. `status` is the HTTP status or 0; `code` is Slurm's error_number or Kubernetes' reason."""

    said = ""  # the other side's own sentence, without our request around it

    def __init__(self, message: str, *, status: int = 0, code: int | str = 0) -> None:
        super().__init__(trim(message))
        self.status = status
        self.code = code

    def saying(self, text: str) -> Self:
        """Keeps the other side's sentence, for people who never heard of the request."""
        self.said = trim(text)
        return self


class TransientError(BridgeError):
    """Retrying the same request is right."""


class Unreachable(TransientError):
    """The request did not reach the other side."""


class UnknownOutcome(TransientError):
    """The request may have been carried out: read back before deciding anything."""


class Busy(TransientError):
    """The other side is there and asks for patience."""

    def __init__(
        self, message: str, *, status: int = 0, code: int | str = 0, retry_after: float = 0.0
    ) -> None:
        super().__init__(message, status=status, code=code)
        self.retry_after = retry_after  # seconds; 0 = not said


class StaleView(TransientError):
    """Our memory is older than the caller may rely on."""


class RefusedError(BridgeError):
    """The other side understood the request and refused it."""


class NotFound(RefusedError):
    """The named object does not exist (never used for an unknown route: that is a ProtocolError)."""


class Conflict(RefusedError):
    """Something is already there, or is not what the precondition says."""


class Invalid(RefusedError):
    """The request can't work as it is written."""


class Denied(RefusedError):
    """The token is missing, expired, or lacks the right."""


class Gone(RefusedError):
    """The watch's starting point is no longer in history: list again."""


class ProtocolError(BridgeError):
    """An answer that the other side's API does not define; nothing may be concluded from it."""


class UserError(BridgeError):
    """Something a person wrote is wrong; the message names the object, the field and the fix."""


class ConfigError(UserError):
    """The configuration file or a flag is wrong."""
