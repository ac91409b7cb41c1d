"""One ASGI application: /scheduler/* goes straight to the extender, /slurm/* to the hooks, the rest to the pages."""

from __future__ import annotations

from fastapi import FastAPI

from bridge.web.extender import Extender, Receive, Scope, Send
from bridge.web.hooks import Hooks

EXTENDER_PREFIX = "/scheduler/"
HOOKS_PREFIX = "/slurm/"


class App:
    def __init__(self, extender: Extender, hooks: Hooks, pages: FastAPI) -> None:
        self._extender = extender
        self._hooks = hooks
        self._pages = pages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith(EXTENDER_PREFIX):
            await self._extender(scope, receive, send)
        elif scope["type"] == "http" and scope["path"].startswith(HOOKS_PREFIX):
            await self._hooks(scope, receive, send)
        else:
            await self._pages(scope, receive, send)
