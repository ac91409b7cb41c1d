"""Pages for people and probes: /livez, /readyz (names what is missing), /metrics. Nothing here writes anything."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fastapi import FastAPI
from fastapi.responses import PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest


def pages(missing: Callable[[], Sequence[str]], notes: Callable[[], Sequence[str]]) -> FastAPI:
    """`missing()`: sentences that say why we can't serve; `notes()`: what works worse than it should."""
    app = FastAPI(title="slurm-bridge", docs_url=None, redoc_url=None, openapi_url=None)

    @app.get("/livez", response_class=PlainTextResponse)
    async def livez() -> str:
        return "ok\n"

    @app.get("/readyz", response_class=PlainTextResponse)
    async def readyz() -> Response:
        lacking = list(missing())
        lines = [f"missing: {line}" for line in lacking] + [f"note: {line}" for line in notes()]
        return PlainTextResponse(
            "\n".join(["not ready" if lacking else "ok", *lines]) + "\n", 503 if lacking else 200
        )

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)

    return app
