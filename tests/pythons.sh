#!/usr/bin/env bash
# Files of every format, written by one Python and read by another, with the Pythons of this machine.
#
#   bash tests/pythons.sh
#
# It looks for Python 3.10 to 3.13 on PATH, in /usr/bin and in pyenv's folder. The oldest and the newest write and read
# what needs no torch. Another patch release of this environment's Python, whose torch is the same, trains by turns with
# it: a pretraining run and a fine-tuning. Environments are made in a temporary folder. What is not here is said.
set -euo pipefail

if [[ "${1:-}" == -h || "${1:-}" == --help ]]; then
    sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
    exit 0
fi
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=launchers/bootstrap.sh
source launchers/bootstrap.sh
bootstrap dev

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
export PYTHONPATH="$PWD:$PWD/tests"
# Each environment is started many times.
unset PYTHONDONTWRITEBYTECODE

version_of() { "$1" -c 'import platform; print(platform.python_version())'; }

interpreters() { # the path of each real interpreter behind its version, the oldest first
    local path
    for path in python3.1{0,1,2,3} /usr/bin/python3.1{0,1,2,3} "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1*/bin/python; do
        path="$(command -v "$path")" || continue
        "$path" -c 'import os, platform, sys
if (3, 10) <= sys.version_info[:2] < (3, 14) and sys.prefix == sys.base_prefix:
    print(platform.python_version(), os.path.realpath(sys.executable))' 2>/dev/null || true
    done | sort -V -u | awk '!seen[$1]++'
}

environment() { # interpreter; sets python
    local place
    place="$folder/env-$(version_of "$1")"
    python="$place/bin/python"
    if ! "$1" -m venv "$place" >"$place.log" 2>&1 || ! install pip "setuptools>=77" wheel ||
        ! install --no-build-isolation "${wheel}[metrics,data]"; then
        tail -n 5 "$place.log" >&2
        return 1
    fi
}

install() { # what to install into the environment of $python, as the set-up does
    env -u PIP_CONSTRAINT -u PYTHONPATH "$python" -m pip install --quiet --no-input --no-compile \
        --disable-pip-version-check --no-cache-dir -c constraints.txt "$@" >>"$place.log" 2>&1
}

declare -A found=()
while read -r version path; do
    found[$version]="$path"
done < <(interpreters)
mapfile -t versions < <(printf '%s\n' "${!found[@]}" | sort -V)
for version in "${versions[@]}"; do printf 'found: Python %s, %s\n' "$version" "${found[$version]}"; done
for minor in 10 11 12 13; do
    [[ " ${versions[*]} " == *" 3.$minor."* ]] || printf 'not here, so not tried: Python 3.%s\n' "$minor"
done

# By a source archive: a wheel that is made of this folder would leave what it is made of here.
python3 -c 'import setuptools.build_meta as build, sys; build.build_sdist(sys.argv[1])' "$folder" >/dev/null
python3 -m pip wheel --quiet --no-deps --no-build-isolation --disable-pip-version-check --wheel-dir "$folder" \
    "$folder"/*.tar.gz
wheel="$(echo "$folder"/*.whl)"
own="$(version_of python3)"

python3 -m support.every_format write "$folder/$own"
others=()
[[ ${#versions[@]} -eq 0 ]] || others=("${versions[0]}")
[[ ${#versions[@]} -lt 2 ]] || others+=("${versions[-1]}")
for version in "${others[@]}"; do
    [[ "$version" != "$own" ]] || continue
    environment "${found[$version]}"
    "$python" -m support.every_format write "$folder/$version"
    "$python" -m support.every_format read "$folder/$own" "$folder/$version"
    python3 -m support.every_format read "$folder/$version" "$folder/$own"
done

neighbour=""
for version in "${versions[@]}"; do
    if [[ "${version%.*}" == "${own%.*}" && "$version" != "$own" ]]; then neighbour="$version" && break; fi
done
if [[ -n "$neighbour" ]]; then
    # Packages that were built for one patch release serve the next: this environment's are read where they lie.
    "${found[$neighbour]}" -m venv --without-pip "$folder/neighbour"
    packages='import sysconfig; print(sysconfig.get_path("purelib"))'
    python3 -c "$packages" >"$("$folder/neighbour/bin/python" -c "$packages")/shared.pth"
    python3 -m support.two_pythons "$folder/neighbour/bin/python" "$folder/turns"
else
    printf 'not here, so not tried: another Python %s than %s, for checkpoints\n' "${own%.*}" "$own"
fi
