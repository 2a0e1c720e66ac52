"""Arrays on a GPU: results that stay there, and arrays of other libraries, without copies.

Input -> Output: ``__dlpack__`` or ``__cuda_array_interface__`` of another library <->
``DeviceArray``.
Guarantees: an array that is not row-major is refused, not copied; what another library reads is
ready on the stream that it names.
Not here: copies from and to the host (transfers), whose memory it is (memory).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.core.errors import OutOfRange, ShapeMismatch
from tilewright.runtime.cuda import dlpack
from tilewright.runtime.cuda.driver import Device, bindings, check
from tilewright.runtime.cuda.memory import LEGACY, UNKNOWN, Block, Word, order
from tilewright.runtime.program import Segment
from tilewright.runtime.segment import out_of_range


@dataclass(frozen=True, slots=True)
class Guard:
    """Where the kernels of a segment report an index out of range; ``owner`` keeps the word."""

    word: Word
    segment: Segment
    owner: Block

    def failure(self) -> OutOfRange | None:
        """What they report, once they have ended."""
        failed = self.word.value
        return out_of_range(self.segment.calls[failed - 1]) if failed else None


class DeviceArray:
    """A row-major array on a GPU.

    Attributes:
        address: of its first element.
        shape, dtype: as of NumPy's arrays.
        device: the GPU.
        stream: handle of the stream on which its contents become ready; None when they are.
        owner: what keeps the memory.
        guards: reports to look at before the contents are believed, once they are ready.
    """

    __slots__ = ("address", "device", "dtype", "guards", "owner", "shape", "stream")

    def __init__(
        self,
        address: int,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        device: Device,
        stream: int | None,
        owner: Any,
    ) -> None:
        self.address, self.shape, self.dtype = address, shape, dtype
        self.device, self.stream, self.owner = device, stream, owner
        self.guards: tuple[Guard, ...] = ()

    def __repr__(self) -> str:
        return f"DeviceArray({self.dtype}{list(self.shape)} on GPU {self.device.ordinal})"

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self.dtype.itemsize

    def reshape(self, shape: tuple[int, ...]) -> DeviceArray:
        """The same elements under another shape."""
        found = DeviceArray(self.address, shape, self.dtype, self.device, self.stream, self.owner)
        found.guards = self.guards
        return found

    def wait(self) -> None:
        """Returns when the contents are ready.

        Raises:
            DeviceFault: what should have made them failed.
            OutOfRange: so did an index that it read.
        """
        if self.stream is not None:
            self.device.use()
            check(bindings().cuStreamSynchronize(self.stream), "waiting for a result")
            self.stream = None
        for guard in self.guards:
            failure = guard.failure()
            if failure is not None:
                raise failure
        self.guards = ()

    def numpy(self) -> npt.NDArray[Any]:
        """A copy on the host."""
        self.wait()
        found = np.empty(self.shape, self.dtype)
        if found.nbytes:
            self.device.use()
            check(
                bindings().cuMemcpyDtoH(found.ctypes.data, self.address, found.nbytes),
                "copying a result from the GPU",
            )
        return found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        if copy is False:
            raise ValueError("an array on a GPU cannot be seen from the host without a copy")
        found = self.numpy()
        return found if dtype is None else found.astype(dtype, copy=False)

    # --- for other libraries ----------------------------------------------------------------------

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CUDA, self.device.ordinal

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: Any = None,
        dl_device: Any = None,
        copy: bool | None = None,
    ) -> Any:
        if copy or dl_device not in (None, self.__dlpack_device__()):
            raise BufferError("arrays on a GPU are shared as they are: neither copied nor moved")
        self._lend(LEGACY if stream is None else UNKNOWN if stream == 0 else stream)
        return dlpack.write(self, self.address, self.shape, self.dtype, self.device.ordinal)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.dtype.kind not in "biufc":
            raise AttributeError(f"the CUDA array interface has no type {self.dtype}")
        self._lend(UNKNOWN)
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.address, False),
            "strides": None,
            "version": 3,
            "stream": self.stream,
        }

    def _lend(self, reader: int) -> None:
        """Orders a reader behind what makes the contents, and the next writer behind the reader."""
        if self.guards:
            self.wait()
        if self.stream is not None and reader != UNKNOWN:
            self.device.use()
            order(self.stream, reader)
        if isinstance(self.owner, Block):
            self.owner.readers.add(reader)


def adopt(value: Any, device: Device, stream: int | None, name: str) -> DeviceArray | None:
    """An array of another library on this GPU; None where it is not on a GPU.

    Args:
        stream: where it is used; None for the default stream, which its library is ordered before.

    Raises:
        ShapeMismatch: it is on another GPU, is not row-major, or cannot be shared.
    """
    where = getattr(value, "__dlpack_device__", None)
    if where is not None:
        if where()[0] not in (dlpack.CUDA, dlpack.CUDA_MANAGED):
            return None
        given = _of_dlpack(value, stream, name)
    elif (interface := getattr(value, "__cuda_array_interface__", None)) is not None:
        given = _of_interface(value, interface, device, stream, name)
    else:
        return None
    if given.device != device.ordinal:
        raise ShapeMismatch(
            f"input {name} lies on GPU {given.device}, the engine runs on GPU {device.ordinal}",
            remedy=f"move it, or load the engine with device={given.device}",
        )
    if not given.is_row_major:
        raise ShapeMismatch(
            f"input {name}: expected a row-major array, given one with other strides",
            remedy="make it contiguous first (torch: x.contiguous())",
        )
    return DeviceArray(given.address, given.shape, given.dtype, device, None, given.owner)


def _of_dlpack(value: Any, stream: int | None, name: str) -> dlpack.Given:
    """Whoever names a stream says that the array is ready there; else its library is asked."""
    try:
        capsule = value.__dlpack__(stream=LEGACY if stream is None else -1)
    except Exception as error:  # code of another library runs here
        raise ShapeMismatch(
            f"input {name}: {type(value).__name__} cannot be shared: {error}",
            remedy="give a plain array (torch: x.detach())",
        ) from error
    return dlpack.read(capsule)


def _of_interface(
    value: Any, interface: Any, device: Device, stream: int | None, name: str
) -> dlpack.Given:
    dtype = np.dtype(interface["typestr"])
    shape, strides = tuple(interface["shape"]), interface.get("strides")
    if interface.get("mask") is not None:
        raise ShapeMismatch(f"input {name}: an array with a mask", remedy="give one without")
    if stream is None and interface.get("stream"):
        order(int(interface["stream"]), LEGACY)
    steps = None if strides is None else tuple(step // dtype.itemsize for step in strides)
    return dlpack.Given(
        interface["data"][0],
        shape,
        dtype,
        _gpu_of(interface["data"][0], device) if 0 not in shape else device.ordinal,
        steps is None or dlpack.is_row_major(shape, steps),
        value,
    )


def _gpu_of(address: int, device: Device) -> int:
    """The GPU of an address, which the interface does not tell."""
    device.use()
    attribute = bindings().CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    return int(check(bindings().cuPointerGetAttribute(attribute, address), "asking for its GPU"))
