"""The ``.tw`` file: a zip of JSON, weights and object code.

Input -> Output: an ``EngineParts`` <-> a file.
    engine.json           format, versions, specs, program, decisions, hashes of all other members
                          (piece_hash)
    engine.sha256         hash of engine.json
    weights.safetensors   constants; sub-byte and 8-bit float types as bytes (their type is in
    engine.json) kernels/KEY.o, .ll    object code and its readable source
    kernels/KEY.sm_90.cubin, .ptx, .cu    the same for GPUs
Guarantees: written whole or not at all; on load every name, size and hash is checked before use,
sizes before allocation; nothing in the file is executed while loading.
Security: kernels are machine code: run engines only of people whose programs you would run.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from tilewright.core import dtypes
from tilewright.core.check_option import MAX_THREADS, file_path
from tilewright.core.errors import CorruptEngine, UserError
from tilewright.core.record import Decision, Placement
from tilewright.core.whole_file import whole_file
from tilewright.runtime import piece_hash
from tilewright.runtime.check_program import check_program
from tilewright.runtime.encode import decode, encode, fits
from tilewright.runtime.program import Program
from tilewright.runtime.weights_file import map_member, read_weights, write_weights

FORMAT = 4  # raised with every change of the records in it
WEIGHTS = "weights.safetensors"
_MAX_MEMBERS = 100_000
_MAX_JSON_BYTES = 1 << 28
_MAX_RATIO = 200  # of a member
_MAX_TOTAL_RATIO = 100  # of all of them to the file
_LEAST_TOTAL_BYTES = 4 << 20  # that are never too much
_REMEDY = "build the engine again"
_PATH = "check the path: an engine is a file that Engine.save or `tilewright compile` wrote"
_MODELS = (".onnx", ".pb", ".pt", ".pth", ".torchscript")
_COMPILE = "a model is compiled first: tilewright.compile(path), or `tilewright compile` in a shell"
# What a damaged archive makes zipfile raise: while it reads the directory, and a member (whose
# password or method may be forged as well).
_ARCHIVE_ERRORS = (
    zipfile.BadZipFile,
    zipfile.LargeZipFile,
    EOFError,
    NotImplementedError,
    OverflowError,
    ValueError,
    struct.error,
)
_MEMBER_ERRORS = (*_ARCHIVE_ERRORS, zlib.error, RuntimeError, OSError)
_INFO_TYPES: dict[str, Any] = {
    "cpu": str,
    "triple": str,
    "required_features": tuple[str, ...],
    "archs": tuple[str, ...],
    "streams": int,
    "threads": int,
    "ranges": Mapping[str, tuple[int | None, int | None]],
    "metadata": Mapping[str, str],
    "summary": Mapping[str, Any],
}
Array = npt.NDArray[Any]


@dataclass(slots=True, kw_only=True)
class EngineParts:
    """Everything an engine consists of.

    Attributes:
        program: what is executed.
        constants: arrays by name.
        objects: object code by kernel key (``driver`` is the driver and thread pool).
        device_code: code for GPUs by file name (``KEY.sm_90.cubin``, ``KEY.ptx``).
        sources: LLVM IR or CUDA C++ by kernel key.
        exports: symbols of each object.
        decisions: every choice of the build.
        placements: where each node of the imported model went.
        info: versions, target, options, dim ranges, summary (JSON values).
        times: seconds of the build, which are not saved: equal builds give equal files.
    """

    program: Program
    constants: dict[str, Array]
    objects: dict[str, bytes]
    device_code: dict[str, bytes] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    exports: dict[str, tuple[str, ...]] = field(default_factory=dict)
    decisions: tuple[Decision, ...] = ()
    placements: tuple[Placement, ...] = ()
    info: dict[str, Any] = field(default_factory=dict)
    times: dict[str, Any] = field(default_factory=dict)


# --- save -----------------------------------------------------------------------------------------


def save(parts: EngineParts, path: str | os.PathLike[str]) -> None:
    """Writes an engine; an existing file is replaced only when the new one is complete.

    Raises:
        CacheError: the folder cannot be written, the disk is full, or it is no plain file.
        BadOption: ``path`` is no path.
    """
    with whole_file(path) as unfinished, unfinished.open("wb") as file:
        _write(parts, file)


def _write(parts: EngineParts, file: Any) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        hashes: dict[str, str] = {}

        def member(name: str, data: bytes, compress: bool = False) -> None:
            entry = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
            archive.writestr(entry, data)
            hashes[name] = piece_hash.start(data)()

        table = {
            name: [_dtype(a).name, list(a.shape)] for name, a in sorted(parts.constants.items())
        }
        strings = {
            name: [str(part) for part in parts.constants[name].reshape(-1).tolist()]
            for name, (dtype, _) in table.items()
            if dtype == "string"
        }
        entry = zipfile.ZipInfo(WEIGHTS, date_time=(1980, 1, 1, 0, 0, 0))
        with archive.open(entry, "w", force_zip64=True) as stream:
            hashes[WEIGHTS] = write_weights(stream, file.tell(), parts.constants, table)
        for key in sorted(parts.objects):
            member(f"kernels/{key}.o", parts.objects[key])
        for name in sorted(parts.device_code):
            member(f"kernels/{name}", parts.device_code[name], compress=True)
        for key in sorted(parts.sources):
            member(
                f"kernels/{key}{source_suffix(parts)}", parts.sources[key].encode(), compress=True
            )
        document = {
            "format": FORMAT,
            "info": encode(parts.info),
            "program": encode(parts.program),
            "constants": table,
            "strings": strings,
            "exports": {key: list(names) for key, names in sorted(parts.exports.items())},
            "decisions": encode(parts.decisions),
            "placements": encode(parts.placements),
            "hashes": dict(hashes),
        }
        text = json.dumps(document, separators=(",", ":"), allow_nan=False).encode()
        member("engine.json", text, compress=True)
        member("engine.sha256", hashes["engine.json"].encode())


def source_suffix(parts: EngineParts) -> str:
    """The end of the file names of readable sources."""
    return ".cu" if parts.device_code else ".ll"


def _dtype(array: Array) -> dtypes.DType:
    return dtypes.from_numpy(array.dtype)


# --- load -----------------------------------------------------------------------------------------


def load_parts(path: str | os.PathLike[str]) -> EngineParts:
    """Reads and checks an engine file.

    Raises:
        CorruptEngine: it is damaged, truncated, hostile or of another format.
        UserError: there is no such file.
        BadOption: ``path`` is no path.
    """
    checked = file_path("path", path)
    name = str(path)
    try:
        with open(checked, "rb", opener=_open_without_waiting) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise CorruptEngine("not a regular file", file=name, remedy=_PATH)
            with zipfile.ZipFile(file) as archive:
                return _read(archive)
    except FileNotFoundError as error:
        raise UserError("no such file", file=name, remedy="check the path") from error
    except _ARCHIVE_ERRORS as error:
        remedy = _COMPILE if checked.suffix in _MODELS else _REMEDY
        raise CorruptEngine(f"not an engine file: {error}", file=name, remedy=remedy) from error
    except OSError as error:
        raise CorruptEngine(f"cannot be read: {error.strerror}", file=name, remedy=_PATH) from error
    except CorruptEngine as error:
        error.file = error.file or name
        raise


def _open_without_waiting(path: str, flags: int) -> int:
    """A pipe that nobody writes to must not stop the program."""
    return os.open(path, flags | os.O_NONBLOCK)


def _read(archive: zipfile.ZipFile) -> EngineParts:
    _check_members(archive)
    text = _member(archive, "engine.json", _MAX_JSON_BYTES)
    expected = _member(archive, "engine.sha256", 64).decode("ascii", "replace")
    if hashlib.sha256(text).hexdigest() != expected:
        raise CorruptEngine("engine.json does not match its hash", remedy=_REMEDY)
    document = _parse(text)
    if document.get("format") != FORMAT:
        raise CorruptEngine(
            f"the file has format {document.get('format')!r}, this version reads {FORMAT}",
            remedy="build the engine again with this version of tilewright",
        )
    try:
        return _assemble(archive, document)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptEngine(f"engine.json is not complete: {error}", remedy=_REMEDY) from error


def _parse(text: bytes) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CorruptEngine(f"engine.json is not JSON: {error}", remedy=_REMEDY) from error
    if not isinstance(document, dict):
        raise CorruptEngine("engine.json is not an object", remedy=_REMEDY)
    return document


def _check_members(archive: zipfile.ZipFile) -> None:
    entries = archive.infolist()
    if len(entries) > _MAX_MEMBERS or len({entry.filename for entry in entries}) != len(entries):
        raise CorruptEngine("too many members, or a member twice", remedy=_REMEDY)
    for entry in entries:
        parts = entry.filename.split("/")
        if entry.filename.startswith("/") or "\\" in entry.filename or ".." in parts:
            raise CorruptEngine(f"a member is named {entry.filename!r}", remedy=_REMEDY)
        if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise CorruptEngine(f"{entry.filename} is packed in a foreign way", remedy=_REMEDY)
        if entry.header_offset + entry.compress_size > archive.start_dir:
            raise CorruptEngine(f"{entry.filename} lies outside of the file", remedy=_REMEDY)
        if entry.file_size > _MAX_RATIO * max(entry.compress_size, 1024):
            raise CorruptEngine(f"{entry.filename} expands {_MAX_RATIO} times", remedy=_REMEDY)
    total = sum(entry.file_size for entry in entries)
    if total > max(_MAX_TOTAL_RATIO * archive.start_dir, _LEAST_TOTAL_BYTES):
        raise CorruptEngine(f"its members expand to {total} bytes", remedy=_REMEDY)


def _member(archive: zipfile.ZipFile, name: str, most: int | None = None) -> bytes:
    try:
        entry = archive.getinfo(name)
    except KeyError as error:
        raise CorruptEngine(f"{name} is missing", remedy=_REMEDY) from error
    if most is not None and entry.file_size > most:
        raise CorruptEngine(f"{name} has {entry.file_size} bytes", remedy=_REMEDY)
    try:
        return archive.read(entry)
    except _MEMBER_ERRORS as error:
        raise CorruptEngine(f"{name} cannot be read: {error}", remedy=_REMEDY) from error


def _large_member(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> memoryview | None:
    try:
        return map_member(archive, entry)
    except _MEMBER_ERRORS as error:
        raise CorruptEngine(f"{entry.filename} cannot be read: {error}", remedy=_REMEDY) from error


def _assemble(archive: zipfile.ZipFile, document: dict[str, Any]) -> EngineParts:
    hashes: dict[str, str] = document["hashes"]
    data: dict[str, bytes | memoryview] = {}
    hashed: dict[str, Callable[[], str]] = {}
    for entry in archive.infolist():
        if entry.filename in ("engine.json", "engine.sha256"):
            continue
        if entry.filename not in hashes:
            raise CorruptEngine(f"an unknown member {entry.filename}", remedy=_REMEDY)
        data[entry.filename] = _large_member(archive, entry) or _member(archive, entry.filename)
        hashed[entry.filename] = piece_hash.start(data[entry.filename])
    missing = sorted(set(hashes) - set(data))
    if missing:
        raise CorruptEngine(f"missing members {missing[:5]}", remedy=_REMEDY)
    program = decode(document["program"])
    decisions = decode(document["decisions"])
    placements = decode(document.get("placements", []))
    if not isinstance(program, Program) or not (
        all(isinstance(d, Decision) for d in decisions)
        and all(isinstance(p, Placement) for p in placements)
    ):
        raise CorruptEngine("engine.json holds no program", remedy=_REMEDY)
    for name, found in hashed.items():  # large members were hashed all the while
        if found() != hashes[name]:
            raise CorruptEngine(f"{name} does not match its hash", remedy=_REMEDY)
    kernels = {
        name[len("kernels/") :]: bytes(data[name]) for name in data if name.startswith("kernels/")
    }
    constants = read_weights(data[WEIGHTS], document["constants"], document["strings"])
    exports = {key: tuple(map(str, names)) for key, names in document["exports"].items()}
    check_program(program, constants, exports)
    return EngineParts(
        program=program,
        constants=constants,
        objects={key[:-2]: code for key, code in kernels.items() if key.endswith(".o")},
        device_code={
            key: code for key, code in kernels.items() if key.endswith((".cubin", ".ptx"))
        },
        sources={
            key[:-3]: code.decode() for key, code in kernels.items() if key.endswith((".ll", ".cu"))
        },
        exports=exports,
        decisions=tuple(decisions),
        placements=tuple(placements),
        info=_info(decode(document["info"])),
    )


def _info(info: Any) -> dict[str, Any]:
    """What is known of the build, with the parts that an engine needs of the right types."""
    if not isinstance(info, dict):
        raise CorruptEngine("engine.json says nothing of the build", remedy=_REMEDY)
    for name, kind in _INFO_TYPES.items():
        if name in info and not fits(info[name], kind):
            raise CorruptEngine(f"{name} is {str(info[name])[:40]!r}", remedy=_REMEDY)
    if not 1 <= info.get("threads", 1) <= MAX_THREADS:
        raise CorruptEngine(f"threads is {info['threads']}", remedy=_REMEDY)
    return info
