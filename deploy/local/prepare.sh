# Sourced by the programs beside it: makes sure that the machine has what they need, and sets $python.
# Debian's own packages are installed only if they are missing; everything else goes to the user's cache folder.
set -eu
here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)

if [ "$(id -u)" != 0 ]; then
    echo "The local stack needs root: Slurm's daemons run in private mount namespaces and start jobs as other users." >&2
    exit 1
fi

usable_python() {
    for python in python3 /usr/bin/python3; do
        "$python" -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && return 0
    done
    return 1
}

missing=""
usable_python || missing="$missing python3 python3-venv"
for tool in openssl mmdebstrap; do
    command -v "$tool" >/dev/null || missing="$missing $tool"
done
[ -s /etc/ssl/certs/ca-certificates.crt ] || missing="$missing ca-certificates"

if [ -n "$missing" ]; then
    echo "Installing from Debian:$missing" >&2
    apt_log=$(mktemp)
    # A third-party source that fails to update is no reason to stop: the installation decides.
    apt-get update -qq >"$apt_log" 2>&1 || true
    # shellcheck disable=SC2086  # one word per package
    if ! DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >>"$apt_log" 2>&1; then
        tail -n 10 "$apt_log" >&2
        echo "apt-get install failed; the whole log is $apt_log" >&2
        exit 1
    fi
    rm -f "$apt_log"
    usable_python || { echo "Python 3.11 or newer is needed, with its venv module (Debian 12 or newer has it)." >&2; exit 1; }
fi
export PYTHONPATH="$here" PYTHONDONTWRITEBYTECODE=1 PYTHONSAFEPATH=1
