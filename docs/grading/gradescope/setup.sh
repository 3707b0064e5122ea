#!/bin/sh
# Gradescope builds the image of the autograder with this, once, as root. course.tar.gz is this repository with the hidden
# tests (`git archive -o course.tar.gz HEAD`), never a release. The zip that you upload holds it, this file and the two
# beside it.
set -e
apt-get update
apt-get install --yes --no-install-recommends g++ python3 python3-venv
python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "ep_lib needs Python 3.11 or newer, and this image has $(python3 --version): choose Ubuntu 24.04 or newer" >&2
    exit 1
}
mkdir -p /srv/course
tar --extract --gzip --file /autograder/source/course.tar.gz --directory /srv/course
python3 -m venv /srv/venv
# torch is for exercise 09_router alone: without it the others are graded all the same
/srv/venv/bin/pip install --no-cache-dir --constraint /srv/course/.ci/constraints.txt --editable /srv/course torch
/srv/venv/bin/python -c "import ep_lib; ep_lib.Kernel.from_source('__global__ void k() {}', 'k').compile()"
cp /autograder/source/to_results.py /srv/to_results.py
