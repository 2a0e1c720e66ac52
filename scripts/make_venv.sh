#!/usr/bin/env bash
# Makes the virtual environment that the Makefile installs into: scripts/make_venv.sh DIRECTORY
# Takes Python 3.11 when there is one (the version the locks are tested with), else the newest above it.
# Where Debian's Python comes without ensurepip, installs the package that has it, as root, or says what to install.
set -euo pipefail

venv=${1:?usage: make_venv.sh DIRECTORY}

is_suitable() {
  "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

has_venv() {
  "$1" -c 'import ensurepip, venv' >/dev/null 2>&1
}

# A name on PATH proves nothing (version managers leave shims that fail), so each is run.
suitable=()
for name in python3.11 python3.15 python3.14 python3.13 python3.12 python3; do
  while IFS= read -r path; do
    if is_suitable "$path"; then suitable+=("$path"); fi
  done < <(type -aP "$name" || true)
done
if [ ${#suitable[@]} -eq 0 ]; then
  echo "error: no Python >= 3.11 on PATH. On Debian 12+ or Ubuntu 24.04+: apt-get install python3 python3-venv" >&2
  exit 1
fi

python=
for candidate in "${suitable[@]}"; do
  if has_venv "$candidate"; then
    python=$candidate
    break
  fi
done

if [ -z "$python" ]; then
  python=${suitable[0]}
  package=$("$python" -c 'import sys; print(f"python{sys.version_info[0]}.{sys.version_info[1]}-venv")')
  if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
    apt-get update -qq >&2
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$package" >&2
  else
    echo "error: $python cannot make virtual environments. Run: sudo apt-get install $package" >&2
    exit 1
  fi
fi

echo "using $("$python" --version) ($python)" >&2
"$python" -m venv --clear "$venv"
