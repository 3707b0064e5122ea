"""Compiled kernels on the GPU: modules are loaded once and given their DeviceState, and their limits are queried."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ep_lib.cuda.errors import NOT_FOUND
from ep_lib.errors import KernelLaunchError
from ep_lib.jit.elf import Elf, variable_sizes
from ep_lib.jit.kernel import require_threads
from ep_lib.jit.signature import Param

if TYPE_CHECKING:
    from ep_lib.jit.nvrtc import NvrtcImage

STATE_SYMBOL = "ep_device_state"  # <ep/device_state.cuh>
# An inlined function of CUDA's <cooperative_groups.h>: the line table, which NVRTC always writes, names it
_GRID_BARRIER = b"get_grid_workspace"

# CUfunction_attribute
_MAX_THREADS_PER_BLOCK = 0
_SHARED_SIZE_BYTES = 1
_NUM_REGS = 4
_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8

_ARGUMENT_ALIGNMENT = 16  # bytes: no argument needs more
_SHARED_WITHOUT_ASKING = 48 * 1024  # bytes per block; more must be asked for


@dataclass
class LoadedKernel:
    """A function in a loaded module, and its requirements."""

    name: str
    function: int
    params: tuple[Param, ...]
    max_threads: int
    static_shared: int
    registers: int
    driver: Any
    knows_ranks: bool  # its source includes <ep/...>: it may wait for other ranks
    module: CudaModule
    cubin: bytes
    dynamic_shared: int = _SHARED_WITHOUT_ASKING  # the function's current limit, static part included
    # Launches of (blocks, threads, bytes of shared memory) that can be repeated with other arguments: native_host.py
    again: dict[tuple[int, int, int], Any] = field(default_factory=dict)
    _blocks: dict[tuple[int, int], int] = field(default_factory=dict)

    @functools.cached_property
    def offsets(self) -> tuple[tuple[int, ...], int]:
        """The offset of each argument in a buffer for all of them, and the buffer's size, in bytes."""
        offsets, end = [], 0
        for param in self.params:
            offsets.append(-(-end // _ARGUMENT_ALIGNMENT) * _ARGUMENT_ALIGNMENT)
            end = offsets[-1] + param.size
        return tuple(offsets), max(end, 1)

    @functools.cached_property
    def syncs_grid(self) -> bool:
        """Whether a kernel of its source has grid_group::sync, for which all blocks must run at once."""
        return _GRID_BARRIER in self.cubin

    def variable(self, symbol: str) -> tuple[int, int] | None:
        """Address and bytes of a variable of the module; None if it has none of that name."""
        nbytes = variable_sizes(Elf(self.cubin)).get(symbol)
        address = None if nbytes is None else self.module.symbol(symbol)
        return None if address is None or nbytes is None else (address, nbytes)

    def check(self, block: tuple[int, int, int], shared_bytes: int, max_shared: int) -> None:
        """Refuse a launch that the GPU cannot run, and request large shared memory. Sizes in bytes; raises
        KernelLaunchError."""
        require_threads(self.name, block, self.max_threads)
        total = self.static_shared + shared_bytes
        if shared_bytes < 0 or total > max_shared:
            raise KernelLaunchError(
                f"{self.name}: {shared_bytes} bytes of dynamic shared memory and {self.static_shared} static; this GPU "
                f"has {max_shared} for a block"
            )
        if total > self.dynamic_shared:
            self.driver.funcSetAttribute(self.function, _MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_bytes)
            self.dynamic_shared = total

    def blocks_on_an_sm(self, threads: int, shared_bytes: int) -> int:
        """The number of blocks of ``threads`` threads that an SM can hold."""
        shape = threads, shared_bytes
        if shape not in self._blocks:
            ask = self.driver.occupancyMaxActiveBlocksPerMultiprocessor
            self._blocks[shape] = int(ask(self.function, threads, shared_bytes))
        return self._blocks[shape]


@dataclass(frozen=True)
class CudaModule:
    """A loaded module: its CUmodule, and CuPy's binding of the driver."""

    handle: int
    driver: Any

    def symbol(self, name: str) -> int | None:
        """The address of a variable; None if the module has none of that name."""
        try:
            return int(self.driver.moduleGetGlobal(self.handle, name))
        except self.driver.CUDADriverError as error:
            if error.status == NOT_FOUND:
                return None
            raise


class ModuleCache:
    """Loads each distinct cubin once; ``state`` goes into its ``ep_device_state`` before the first launch, and
    ``register(module, image)`` is called then."""

    def __init__(
        self,
        driver: Any,
        state: bytes,
        copy_to_device: Callable[[int, bytes], None],
        register: Callable[[CudaModule, NvrtcImage], None],
    ) -> None:
        self._driver = driver
        self._state = state
        self._copy_to_device = copy_to_device
        self._register = register
        self._modules: dict[bytes, CudaModule] = {}

    def load(self, name: str, image: NvrtcImage) -> LoadedKernel:
        """The kernel ``image.lowered_name`` of ``image.cubin``, ready to launch."""
        digest = hashlib.sha256(image.cubin).digest()
        module = self._modules.get(digest)
        if module is None:
            module = self._modules[digest] = CudaModule(self._driver.moduleLoadData(image.cubin), self._driver)
            state = module.symbol(STATE_SYMBOL)
            if state is not None:  # a kernel that does not use ranks has no such symbol
                self._copy_to_device(state, self._state)
            self._register(module, image)
        function = self._driver.moduleGetFunction(module.handle, image.lowered_name)

        def attribute(which: int) -> int:
            return int(self._driver.funcGetAttribute(which, function))

        return LoadedKernel(
            name=name,
            function=function,
            params=tuple(image.params),
            max_threads=attribute(_MAX_THREADS_PER_BLOCK),
            static_shared=attribute(_SHARED_SIZE_BYTES),
            registers=attribute(_NUM_REGS),
            driver=self._driver,
            knows_ranks=module.symbol(STATE_SYMBOL) is not None,
            module=module,
            cubin=image.cubin,
        )
