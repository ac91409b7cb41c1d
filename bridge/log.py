"""One line a fact: time, level, component, sentence, then key=value. `setup()` once, in `cli`."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

ROOT = "bridge"


class _Line(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        stamp = f"{seconds}.{int(record.msecs):03d}Z"  # UTC: the logs of two machines are compared
        fields: Mapping[str, Any] = getattr(record, "fields", {})
        pairs = "".join(f" {key}={_quote(str(value))}" for key, value in fields.items())
        component = record.name.removeprefix(ROOT + ".")
        line = f"{stamp} {record.levelname.lower():7} {component}: {record.getMessage()}{pairs}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _quote(text: str) -> str:
    return f'"{text}"' if " " in text or not text else text


class Logger:
    """`log.info("job submitted", job=5)`: the fields become key=value."""

    def __init__(self, name: str) -> None:
        self._log = logging.getLogger(f"{ROOT}.{name}")

    def debug(self, text: str, **fields: object) -> None:
        self._log.debug(text, extra={"fields": fields})

    def info(self, text: str, **fields: object) -> None:
        self._log.info(text, extra={"fields": fields})

    def warning(self, text: str, **fields: object) -> None:
        self._log.warning(text, extra={"fields": fields})

    def error(self, text: str, **fields: object) -> None:
        self._log.error(text, extra={"fields": fields})

    def exception(self, text: str, **fields: object) -> None:
        """With the traceback: for our own bugs only."""
        self._log.exception(text, extra={"fields": fields})


def logger(name: str) -> Logger:
    return Logger(name)


def setup(level: str = "info") -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(_Line())
    root = logging.getLogger(ROOT)
    root.handlers = [handler]
    root.setLevel(level.upper())
    root.propagate = False
