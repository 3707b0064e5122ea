#!/bin/sh
# Says in one line what this machine lacks before anything is installed: preflight.sh PYTHON
set -u
python=${1:-python3}
cxx=${EP_LIB_CXX:-}

package() { # the install command for a Debian name ($1) and a Fedora name ($2)
    sudo=""
    [ "$(id -u)" = 0 ] || sudo="sudo "
    if command -v apt-get >/dev/null 2>&1; then
        echo "${sudo}apt-get install $1"
    elif command -v dnf >/dev/null 2>&1; then
        echo "${sudo}dnf install $2"
    else
        echo "install $1 with this system's package manager"
    fi
}

fail() {
    echo "make: $*" >&2
    exit 1
}

[ "$(uname -s)" = Linux ] ||
    fail "the workshop runs on Linux, and this is $(uname -s): use WSL 2, a Linux container or a cloud notebook"
command -v "$python" >/dev/null 2>&1 ||
    fail "there is no $python here: $(package "python3 python3-venv" python3)"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "$("$python" --version 2>&1) is too old, 3.11 is the oldest that works: $(package "python3.11 python3.11-venv" python3.11), then make PYTHON=python3.11"
"$python" -c 'import ensurepip, venv' >/dev/null 2>&1 ||
    fail "$python cannot make virtual environments: $(package python3-venv python3)"
if [ -n "$cxx" ]; then
    command -v "$cxx" >/dev/null 2>&1 ||
        fail "EP_LIB_CXX names the compiler $cxx, which is not there: unset it, or $(package g++ gcc-c++)"
else
    command -v g++ >/dev/null 2>&1 || command -v clang++ >/dev/null 2>&1 ||
        fail "there is no C++ compiler here: $(package g++ gcc-c++)"
fi
