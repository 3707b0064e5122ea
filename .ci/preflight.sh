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
case $(uname -m) in
x86_64) ;;
aarch64) echo "make: this is aarch64, for which the emulator has code that is not tested: tests run on x86-64" >&2 ;;
*) fail "the emulator runs on x86-64 and aarch64, and this is $(uname -m)" ;;
esac
command -v "$python" >/dev/null 2>&1 ||
    fail "there is no $python here: $(package "python3 python3-venv" python3)"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "$("$python" --version 2>&1) is too old, 3.11 is the oldest that works: $(package "python3.11 python3.11-venv" python3.11), then make PYTHON=python3.11"
"$python" -c 'import sys, sysconfig; sys.exit("musl" in (sysconfig.get_config_var("HOST_GNU_TYPE") or ""))' ||
    fail "$python is linked to musl, for which torch and NVIDIA's packages have no wheels: use a system with glibc, such as Debian's image"
"$python" -c 'import ensurepip, venv' >/dev/null 2>&1 ||
    fail "$python cannot make virtual environments: $(package python3-venv python3)"

oldest_gcc=11 oldest_clang=14 # ep_lib/jit/toolkit.py has them, too

new_enough() { # whether $1 is a C++ compiler that compiles the emulator, by its own macros
    answer=$(printf '#ifdef __clang__\nep_lib clang __clang_major__\n#else\nep_lib gnu __GNUC__\n#endif\n' |
        "$1" -std=c++17 -E -P -x c++ - 2>/dev/null) || return 1
    for version in $answer; do :; done # the last word
    case $answer in
    *"ep_lib clang "[0-9]*) [ "$version" -ge $oldest_clang ] ;;
    *"ep_lib gnu "[0-9]*) [ "$version" -ge $oldest_gcc ] ;;
    *) return 1 ;;
    esac
}

needs="the emulator needs g++ $oldest_gcc or clang++ $oldest_clang, or a newer one"
if [ -n "$cxx" ]; then
    command -v "$cxx" >/dev/null 2>&1 ||
        fail "EP_LIB_CXX names the compiler $cxx, which is not there: unset it, or $(package g++ gcc-c++)"
    new_enough "$cxx" || fail "EP_LIB_CXX names the compiler $cxx, which is too old or none: $needs"
else
    command -v g++ >/dev/null 2>&1 || command -v clang++ >/dev/null 2>&1 ||
        fail "there is no C++ compiler here ($needs): $(package g++ gcc-c++)"
    new_enough g++ || new_enough clang++ ||
        fail "the C++ compiler here is too old: $needs; EP_LIB_CXX names one that is not called so"
fi
