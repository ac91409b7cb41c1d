"""The API server adapter: bytes on one side, `bridge.core.model` and `bridge.errors` on the other."""
