"""The Kubernetes executable: built once from pinned Go modules, then taken from the cache.

In: the Go files of `deploy/local/kubernetes`. Out: the path of the executable.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

from localstack import machine
from localstack.layout import CACHE, LOCAL, locked
from localstack.progress import run

SOURCE = LOCAL / "kubernetes"
_INPUTS = ("go.mod", "go.sum", "main.go", "controllers.go")
_VERSION_PACKAGE = "k8s.io/component-base/version"


def executable() -> Path:
    """Where the executable is once `build` has returned."""
    digest = hashlib.sha256("\0".join(_flags()).encode())
    for name in _INPUTS:
        digest.update((SOURCE / name).read_bytes())
    return CACHE / f"kubernetes-{digest.hexdigest()[:12]}" / "kubestack"


def build() -> Path:
    target = executable()
    if target.exists():
        return target
    with locked(CACHE / "kubernetes.lock"):
        if target.exists():  # another stack built it while we waited for the lock
            return target
        draft = target.with_name(f"kubestack.{os.getpid()}")
        target.parent.mkdir(parents=True, exist_ok=True)
        env = {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly"}
        log, packages = CACHE / "log" / "kubernetes-modules.log", CACHE / "log" / "kubernetes-build.log"
        packages.unlink(missing_ok=True)
        go = machine.go()
        try:
            run(
                "Kubernetes: fetching Go modules",
                [go, "mod", "download"],
                log,
                cwd=SOURCE,
                env=env,
                hint=lambda: "the module proxy sends some 300 MB",
            )
            run(
                "Kubernetes: compiling (about 6 min on 2 cores, once)",
                [go, "build", "-v", *_flags(), "-o", draft, "."],
                packages,
                cwd=SOURCE,
                env=env,
                hint=lambda: _packages_compiled(packages),
            )
            draft.replace(target)
        finally:
            draft.unlink(missing_ok=True)
    return target


def _packages_compiled(log: Path) -> str:
    """`go build -v` prints each package that it compiles; one that Go has in its own cache is not among them."""
    names = log.read_text(errors="replace").split()
    return f"{len(names)} packages so far, the last one {names[-1]}" if names else "reading its cache"


def _flags() -> list[str]:
    """Without a version the API server calls itself 0.0.0 and sets its feature gates accordingly."""
    version = _kubernetes_version()
    major, minor = version.removeprefix("v").split(".")[:2]
    facts = {
        "gitVersion": version,
        "gitMajor": major,
        "gitMinor": minor,
        "gitTreeState": "clean",
        "gitCommit": "0" * 40,
    }
    settings = " ".join(f"-X {_VERSION_PACKAGE}.{key}={value}" for key, value in facts.items())
    return ["-trimpath", "-ldflags", f"-s -w {settings}"]


def _kubernetes_version() -> str:
    match = re.search(r"^\s*k8s\.io/kubernetes (v\S+)", (SOURCE / "go.mod").read_text(), re.MULTILINE)
    if match is None:
        raise AssertionError("go.mod does not require k8s.io/kubernetes")
    return match[1]
