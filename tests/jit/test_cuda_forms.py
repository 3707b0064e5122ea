"""NVRTC and the emulator agree on what is CUDA, and the emulator and a GPU on what it computes: tests/cuda_forms."""

from __future__ import annotations

from functools import partial

import pytest
from support.cuda_forms import Form, forms, kernels_of, right_forms, values

from ep_lib import spawn
from ep_lib.errors import EpError
from ep_lib.jit import nvrtc, toolkit
from ep_lib.jit.kernel import Kernel

pytestmark = pytest.mark.cuda_rules

FILES = ("functions.txt", "threads.txt", "numbers.txt", "cub.txt")

needs_nvrtc = pytest.mark.skipif(not nvrtc.available(), reason="NVRTC is not installed")


def refused(kernel: Kernel, target: str) -> str:
    try:
        kernel.compile(target)
    except EpError as error:
        return str(error)
    return ""


def together(file: str) -> list[list[Form]]:
    """The forms of a file, in as few compilations as may be."""
    of_file = forms(file)
    return [[f for f in of_file if not f.has_conditions], *([f] for f in of_file if f.has_conditions)]


def test_the_corpus_is_large_enough() -> None:
    right, wrong = right_forms(), forms("not_cuda.txt")
    names = [form.name for form in (*right, *wrong)]
    assert len(set(names)) == len(names) >= 300 and len(wrong) >= len(names) // 3


@pytest.mark.extended(after=1)
@needs_nvrtc
@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_what_is_not_cuda_is_refused(part: int) -> None:
    """By NVRTC, whose word the emulator takes: tests/jit/test_cuda_rules.py."""
    taken = [
        f.name for f in forms("not_cuda.txt")[part::4] if not refused(kernels_of([f], filename=f.name)[0], "sm_90")
    ]
    assert taken == []


@needs_nvrtc
@pytest.mark.slow
@pytest.mark.parametrize("file", FILES)
def test_what_is_cuda_is_taken_by_both(file: str) -> None:
    """All kernels run, too: what they compute, the test below compares with a GPU's."""
    kernels = [kernel for several in together(file) for kernel in kernels_of(several)]
    (found,) = spawn(partial(values, kernels=kernels), 1, backend="emulator")
    assert list(found) == [kernel.name for kernel in kernels]


@pytest.mark.gpu
@pytest.mark.parametrize("file", FILES)
def test_a_gpu_gives_the_same_bits(file: str) -> None:
    newer = "cub/warp/specializations/warp_redux.cuh"
    if file == "cub.txt" and not any((folder / newer).exists() for folder in toolkit.cuda_include_dirs()):
        pytest.skip("the emulator knows CUB as it is from CUDA 13.3 on")
    kernels = [kernel for several in together(file) for kernel in kernels_of(several)]
    (emulated,) = spawn(partial(values, kernels=kernels), 1, backend="emulator")
    alone = [kernel for form in forms(file) for kernel in kernels_of([form])]
    (of_a_gpu,) = spawn(partial(values, kernels=alone), 1, backend="cuda")
    assert emulated == of_a_gpu
