"""Fourier transforms, window functions and the mel filter bank.

Guarantees: transforms in the precision of their input (float32 for half), windows and filter bank
in float64 and rounded once.
"""

from __future__ import annotations

import numpy as np

from tilewright.runtime.reference.dtypes import Array, cast, dtype_of
from tilewright.runtime.reference.registry import Call, Outputs, operator
from tilewright.runtime.reference.shape import one_axis


def _complex(call: Call, x: Array) -> Array:
    """[..., 1] or [..., 2] -> complex [...]."""
    if x.ndim < 2 or x.shape[-1] not in (1, 2):
        raise call.error(f"input {x.shape} must end in 1 (real) or 2 (complex)")
    return x[..., 0] if x.shape[-1] == 1 else x[..., 0] + 1j * x[..., 1]


def _pairs(values: Array) -> Array:
    return np.stack([values.real, values.imag], axis=-1)


def _transform(call: Call, x: Array, length: Array | None, axis: int) -> Outputs:
    axis = one_axis(call, axis, x.ndim)
    if axis == x.ndim - 1:
        raise call.error("the last axis holds the complex parts")
    inverse, one_sided = bool(call.integer("inverse", 0)), bool(call.integer("onesided", 0))
    data = _complex(call, x)
    half = 2 * (x.shape[axis] - 1) if inverse and one_sided else x.shape[axis]
    count = half if length is None else int(length.reshape(()))
    if count < 1:
        raise call.error(f"dft_length {count} must be positive")
    if inverse and one_sided:
        return (np.fft.irfft(data, count, axis=axis)[..., None].astype(x.dtype),)
    if inverse:
        return (_pairs(np.fft.ifft(data, count, axis=axis)).astype(x.dtype),)
    if one_sided:
        if np.iscomplexobj(data):
            raise call.error("a one-sided transform needs real input")
        return (_pairs(np.fft.rfft(data, count, axis=axis)).astype(x.dtype),)
    return (_pairs(np.fft.fft(data, count, axis=axis)).astype(x.dtype),)


@operator("DFT", since=17)
def dft_attribute(call: Call, x: Array, length: Array | None = None) -> Outputs:
    return _transform(call, x, length, call.integer("axis", 1))


@operator("DFT", since=20)
def dft(call: Call, x: Array, length: Array | None = None, axis: Array | None = None) -> Outputs:
    return _transform(call, x, length, -2 if axis is None else int(axis.reshape(())))


@operator("STFT", since=17)
def stft(
    call: Call,
    signal: Array,
    step: Array,
    window: Array | None = None,
    frame_length: Array | None = None,
) -> Outputs:
    if signal.ndim == 2:
        signal = signal[..., None]
    data, hop = _complex(call, signal), int(step.reshape(()))
    size = data.shape[1]
    if frame_length is not None:
        size = int(frame_length.reshape(()))
    elif window is not None:
        size = window.shape[0]
    if window is not None and window.shape != (size,):
        raise call.error(f"window {window.shape} must have the frame length {size}")
    if hop < 1 or size < 1 or size > data.shape[1]:
        raise call.error(f"frames of {size} every {hop} do not fit a signal of {data.shape[1]}")
    starts = np.arange((data.shape[1] - size) // hop + 1) * hop
    frames = data[:, starts[:, None] + np.arange(size)]
    if window is not None:
        frames = frames * window.astype(signal.dtype)
    if call.integer("onesided", 1):
        if np.iscomplexobj(frames):
            raise call.error("a one-sided transform needs real input")
        return (_pairs(np.fft.rfft(frames, axis=2)).astype(signal.dtype),)
    return (_pairs(np.fft.fft(frames, axis=2)).astype(signal.dtype),)


def _register_window(name: str, terms: tuple[float, ...]) -> None:
    """A sum of cosines with alternating signs."""

    def run(call: Call, size: Array) -> Outputs:
        (count,) = call.room([int(size.reshape(()))], np.dtype(np.float64))
        period = count if call.integer("periodic", 1) else count - 1
        phase = 2 * np.pi * np.arange(count) / max(period, 1)
        values = sum((-1) ** k * term * np.cos(k * phase) for k, term in enumerate(terms))
        values = np.asarray(values, np.float64) if period else np.ones(count)
        return (cast(values, call.float_dtype(dtype_of(call.integer("output_datatype", 1)))),)

    operator(name, since=17)(run)


_register_window("HannWindow", (0.5, 0.5))
_register_window("HammingWindow", (25 / 46, 21 / 46))
_register_window("BlackmanWindow", (0.42, 0.5, 0.08))


@operator("MelWeightMatrix", since=17)
def mel_weight_matrix(
    call: Call, bins: Array, dft_length: Array, rate: Array, lower: Array, upper: Array
) -> Outputs:
    count, length, hertz = (int(v.reshape(())) for v in (bins, dft_length, rate))
    low, high = (2595 * np.log10(1 + float(v.reshape(())) / 700) for v in (lower, upper))
    call.room([length // 2 + 1, count], np.dtype(np.float64))
    mel = np.arange(count + 2) * ((high - low) / (count + 2)) + low
    edges = ((length + 1) * (700 * (10 ** (mel / 2595) - 1)) // hertz).astype(np.int64)
    result = np.zeros((length // 2 + 1, count))
    if edges.size and (edges.min() < 0 or edges.max() >= result.shape[0] + 1):
        raise call.error("a band edge is outside the spectrum")
    for band in range(count):
        left, center, right = edges[band : band + 3].tolist()
        if center == left:
            result[center, band] = 1
        else:
            rising = np.arange(left, center + 1)
            result[rising, band] = (rising - left) / (center - left)
        falling = np.arange(center, right)
        if falling.size:
            result[falling, band] = (right - falling) / (right - center)
    return (cast(result, call.float_dtype(dtype_of(call.integer("output_datatype", 1)))),)
