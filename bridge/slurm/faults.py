"""Every way a request to Slurm can fail → one class of bridge.errors, by number and never by text.

No answer:

| httpx                                     | class          | why                    |
|-------------------------------------------|----------------|------------------------|
| ConnectError, ConnectTimeout, PoolTimeout | Unreachable    | nothing was sent       |
| UnsupportedProtocol                       | Unreachable    | nothing was sent       |
| any other (read, write, protocol)         | UnknownOutcome | sent, at least in part |

An answer that isn't 200; the first row that fits:

| HTTP      | error_number             | class          | why                                                |
|-----------|--------------------------|----------------|----------------------------------------------------|
| 401, 511  | any or none              | Denied         | the token; nothing was done                        |
| 429, 503  | any or none              | Busy           | a proxy or slurmrestd asks for patience            |
| 404       | 2017                     | NotFound       | the only proof that Slurm does not know the job    |
| 403       | 1                        | UnknownOutcome | what a DELETE gets while slurmctld is down         |
| any       | 1007                     | Denied         | the token, found out by slurmctld                  |
| any       | 2002, 2010               | Denied         | the token's user lacks the right                   |
| any       | 11                       | Busy           | EAGAIN: MaxJobCount is reached                     |
| any       | 2011                     | Conflict       | the job id exists (Slurm 24.11: with status 500)   |
| any       | 2168                     | Conflict       | a node of that name exists                         |
| any       | ≤0, 1000-1999, 5000-5999 | UnknownOutcome | slurmrestd lost slurmctld on the way               |
| any       | another                  | Invalid        | Slurm understood and refused                       |
| 500 up    | no Slurm body            | UnknownOutcome | something broke; the request may have got through  |
| otherwise | no Slurm body            | ProtocolError  | unknown route or version, redirect, a page         |

A 200 that isn't one:

| body                             | read          | write                                   |
|----------------------------------|---------------|-----------------------------------------|
| not JSON, truncated, wrong shape | ProtocolError | UnknownOutcome                          |
| errors[] not empty               | ProtocolError | the number's row above; 0: not an error |
| submit without job_id            |               | Invalid, code 0; the warnings say why   |
| submit with another job_id       |               | ProtocolError                           |
"""

from __future__ import annotations

from collections.abc import Iterable

import httpx
import msgspec

from bridge.errors import (
    BridgeError,
    Busy,
    Conflict,
    Denied,
    Invalid,
    NotFound,
    ProtocolError,
    UnknownOutcome,
    Unreachable,
    trim,
)
from bridge.slurm import wire
from bridge.slurm.auth import TOKEN_REFUSED

DUPLICATE_JOB_ID = 2011
DUPLICATE_NODE = 2168
UNKNOWN_JOB = 2017
ALREADY_ENDED = 2021
GONE = frozenset({UNKNOWN_JOB, ALREADY_ENDED})  # asked to end it: there is nothing left to end

_AUTHENTICATION = 1007
_TRY_AGAIN = 11
_NO_RIGHT = frozenset({2002, 2010})
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)

_refusal = msgspec.json.Decoder(wire.Refusal)


def from_transport(what: str, error: httpx.HTTPError) -> BridgeError:
    """No answer."""
    name = type(error).__name__
    if isinstance(error, _NOT_SENT):
        return Unreachable(f"{what}: slurmrestd was not reached: {name}: {error}")
    return UnknownOutcome(f"{what}: sent, and no usable answer: {name}: {error}")


def from_answer(what: str, response: httpx.Response) -> BridgeError:
    """An answer that isn't 2xx."""
    status = response.status_code
    try:
        errors: tuple[wire.Error, ...] | None = _refusal.decode(response.content).errors
    except (msgspec.DecodeError, UnicodeDecodeError):
        errors = None
    if not errors:
        return _without_slurm_body(what, response)
    number = significant(errors)
    text = f"{what}: {status}: {describe(errors)}"
    if status in TOKEN_REFUSED:
        return Denied(text, status=status, code=number)
    if status in (429, 503):
        return Busy(text, status=status, code=number, retry_after=_retry_after(response))
    if status == 404 and number == UNKNOWN_JOB:
        return NotFound(text, status=status, code=number)
    if status == 403 and number == 1:
        return UnknownOutcome(text, status=status, code=number)
    said = "; ".join(f"{e.error or e.description} (Slurm error {e.error_number})" for e in errors)
    return from_number(text, number, status=status).saying(said)


def from_number(text: str, number: int, *, status: int = 0) -> BridgeError:
    """Slurm's own error number, wherever it was found."""
    if number == _AUTHENTICATION or number in _NO_RIGHT:
        return Denied(text, status=status, code=number)
    if number == _TRY_AGAIN:
        return Busy(text, status=status, code=number)
    if number in (DUPLICATE_JOB_ID, DUPLICATE_NODE):
        return Conflict(text, status=status, code=number)
    if number <= 0 or 1000 <= number < 2000 or 5000 <= number < 6000:
        return UnknownOutcome(text, status=status, code=number)
    return Invalid(text, status=status, code=number)


def _without_slurm_body(what: str, response: httpx.Response) -> BridgeError:
    status = response.status_code
    kind = response.headers.get("content-type", "no content type")
    text = f"{what}: {status} ({kind}): {trim(response.text, 120)}"
    if status in TOKEN_REFUSED:
        return Denied(text, status=status)
    if status in (429, 503):
        return Busy(text, status=status, retry_after=_retry_after(response))
    if status >= 500:
        return UnknownOutcome(text, status=status)
    return ProtocolError(text, status=status)


def significant(errors: Iterable[wire.Error]) -> int:
    """The number of the first error that has one, else 0."""
    return next((e.error_number for e in errors if e.error_number), 0)


def describe(errors: Iterable[wire.Error]) -> str:
    """The errors in Slurm's words, each with its number."""
    return "; ".join(f"{_text(e)} ({e.error_number})" for e in errors)


def _text(error: wire.Error) -> str:
    """`error` is Slurm's text for the number; `description` mostly says what slurmrestd was about to do."""
    return ": ".join(part for part in (error.description, error.error) if part) or "no text"


def _retry_after(response: httpx.Response) -> float:
    try:
        return max(0.0, float(response.headers.get("retry-after", "0")))
    except ValueError:  # the date form; nobody on this path sends it
        return 0.0
