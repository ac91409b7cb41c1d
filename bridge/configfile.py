"""Reads the configuration file, once, at start. In: a path and the environment. Out: `config.Settings`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from bridge.config import Settings, from_mapping
from bridge.errors import ConfigError

DEFAULT_PATH = Path("/etc/slurm-bridge/config.yaml")


def load(path: Path, environ: Mapping[str, str] = os.environ) -> Settings:
    """Read `path`. Raises ConfigError. Unknown keys are warnings, as the Go project ignores them."""
    try:
        body: Any = yaml.safe_load(path.read_text()) or {}
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read: {error.strerror}; give --config or mount the file"
        ) from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: is not YAML: {error}") from error
    if not isinstance(body, dict):
        raise ConfigError(f"{path}: must be a mapping of keys to values, is a {type(body).__name__}")
    return from_mapping(body, where=str(path), environ=environ)
