"""The token of SlurmUser: read from its file for every request, so that a rotated one needs no restart.

In: a path. Out: the header of each request, and the seconds that the token still lives. No log sees it.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Generator
from functools import lru_cache
from pathlib import Path

import httpx

from bridge.errors import Denied

HEADER = "X-SLURM-USER-TOKEN"
PREFIX = "SLURM_JWT="  # `scontrol token` prints it in front
TOKEN_REFUSED = frozenset(
    {401, 511}
)  # slurmrestd did nothing with such a request, so even a write may go again


class TokenFile:
    """The file, cached for as long as it is the same file with the same size and time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._token = ""

    def read(self) -> str:
        """The bare token. Raises Denied when the file can't be read or is empty."""
        try:
            now = self._path.stat()
            seen = (now.st_ino, now.st_mtime_ns, now.st_size)
            if seen != self._seen:
                self._token = self._path.read_text().strip().removeprefix(PREFIX).strip()
                self._seen = seen
        except (OSError, UnicodeDecodeError) as error:
            raise Denied(
                f"token file {self._path} cannot be read ({error}); mount the Secret there"
            ) from error
        if not self._token:
            raise Denied(f"token file {self._path} is empty; put a token of SlurmUser there")
        return self._token

    def read_again(self) -> str:
        """Past the cache: a file system with coarse times may hide a change."""
        self._seen = None
        return self.read()


class TokenAuth(httpx.Auth):
    """Adds the token; when it is refused, reads the file again and tries once more."""

    def __init__(self, token: TokenFile) -> None:
        self._token = token

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        request.headers[HEADER] = self._token.read()
        response = yield request
        if response.status_code in TOKEN_REFUSED:
            request.headers[HEADER] = self._token.read_again()
            yield request


@lru_cache(maxsize=4)
def subject(token: str) -> str:
    """The user that the JWT is for, "" when it doesn't say."""
    try:
        claims = token.split(".")[1]
        body = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))
        return str(body.get("sun") or body.get("username") or "")
    except (IndexError, ValueError, TypeError, AttributeError, binascii.Error):
        return ""


def expires_in(token: str, now: float) -> float:
    """Seconds until the JWT ends (negative: over), inf when it never ends, nan for no JWT. `now`: Unix."""
    try:
        claims = token.split(".")[1]
        body = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))
        return float(body["exp"]) - now
    except KeyError:
        return math.inf
    except (IndexError, ValueError, TypeError, binascii.Error):
        return math.nan
