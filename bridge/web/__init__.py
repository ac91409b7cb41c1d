"""Requests in: the extender (hot, plain ASGI) and the pages for people and probes (FastAPI)."""
