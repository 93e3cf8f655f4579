"""Memory of a GPU by the driver's own calls, for checks that torch stands in the way of. Knows no kernels.

Every allocation is one of the driver's, so that a checker of memory sees where each array ends.
"""

from __future__ import annotations

import ctypes

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

_MULTIPROCESSORS, _MAJOR = 16, 75  # as the driver numbers what it tells of a device


class Device:
    """The first GPU, with its primary context current in this thread: where the kernels' runtime goes, too."""

    def __init__(self) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuInit", 0)
        self._call("cuDeviceGet", ctypes.byref(device), 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)
        self._device = device
        self.num_multiprocessors = self._attribute(_MULTIPROCESSORS)
        self.is_hopper = self._attribute(_MAJOR) == 9

    def put(self, values: ArrayLike, dtype: DTypeLike | None = None) -> int:
        """The address of a copy."""
        array = np.ascontiguousarray(values, dtype)
        address = self._allocate(array.nbytes)
        if array.nbytes:
            source = array.ctypes.data_as(ctypes.c_void_p)
            self._call("cuMemcpyHtoD_v2", ctypes.c_uint64(address), source, ctypes.c_size_t(array.nbytes))
        return address

    def room(self, num_bytes: int, fill: int = 0xFF) -> int:
        """The address of memory that has this in every byte."""
        address = self._allocate(num_bytes)
        if num_bytes:
            self._call("cuMemsetD8_v2", ctypes.c_uint64(address), ctypes.c_ubyte(fill), ctypes.c_size_t(num_bytes))
        return address

    def take(self, address: int, num_bytes: int) -> NDArray[np.uint8]:
        """What is there when all that was launched is done. Raises RuntimeError if that failed."""
        array = np.empty(num_bytes, np.uint8)
        self._call("cuCtxSynchronize")
        target = array.ctypes.data_as(ctypes.c_void_p)
        self._call("cuMemcpyDtoH_v2", target, ctypes.c_uint64(address), ctypes.c_size_t(num_bytes))
        return array

    def _allocate(self, num_bytes: int) -> int:
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(max(1, num_bytes)))
        return address.value

    def _attribute(self, number: int) -> int:
        value = ctypes.c_int()
        self._call("cuDeviceGetAttribute", ctypes.byref(value), number, self._device)
        return value.value

    def _call(self, name: str, *arguments: object) -> None:
        error = getattr(self._driver, name)(*arguments)
        if error:
            raise RuntimeError(f"{name} failed with error {error}")
