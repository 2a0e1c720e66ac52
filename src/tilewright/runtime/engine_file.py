"""The ``.tw`` file: a zip of JSON, weights and object code.

Input -> Output: an ``EngineParts`` <-> a file.
    engine.json           format, versions, specs, program, its sizes, hashes of all other members
                          (piece_hash)
    engine.sha256         hash of engine.json
    record.json           decisions and placements
    weights.safetensors   constants; sub-byte and 8-bit float types as bytes (their type is in
                          engine.json)
    kernels/KEY.o, .ll    object code and its readable source
    kernels/KEY.sm_90.cubin, .ptx, .cu    the same for GPUs
Guarantees: written whole or not at all; every name, size and hash is checked before use, sizes
before allocation, of what runs on load, of what only tells (record, sources) when it is looked at;
nothing in the file is executed while loading.
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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy.typing as npt

from tilewright.core import dtypes
from tilewright.core.check_option import MAX_THREADS, file_path
from tilewright.core.dim_table import DimTable, read_dims
from tilewright.core.errors import CorruptEngine, UserError
from tilewright.core.recognise import WEIGHTS
from tilewright.core.record import Decision, Placement
from tilewright.core.whole_file import whole_file
from tilewright.runtime import archive as members
from tilewright.runtime import piece_hash
from tilewright.runtime.check_program import check_program
from tilewright.runtime.encode import decode, encode, fits
from tilewright.runtime.later import LaterMapping, LaterSequence
from tilewright.runtime.mapped_file import MappedFile
from tilewright.runtime.program import Program
from tilewright.runtime.weights_file import read_weights, write_weights

FORMAT = 6  # raised with every change of the records in it
RECORD = "record.json"
_SOURCES = (".ll", ".cu")
_MAX_MEMBERS = 100_000
_MAX_JSON_BYTES = 1 << 28
_MAX_RATIO = 200  # of a member
_MAX_TOTAL_RATIO = 100  # of all of them to the file
_LEAST_TOTAL_BYTES = 4 << 20  # that are never too much
# The first member is the weights. A field that readers skip has their bytes begin at a multiple of
# 64: words that lie across those of memory take twice the time to hash.
_HEAD_BYTES = 30 + len(WEIGHTS) + 20  # 20: its sizes in 64 bits
_EXTRA, _EXTRA_KIND = struct.Struct("<HH"), 0x5754
_EXTRA_BYTES = -(_HEAD_BYTES + _EXTRA.size) % 64
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
T = TypeVar("T")


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
        file: whose pages the constants are, where they are those of a file.
    """

    program: Program
    constants: dict[str, Array]
    objects: dict[str, bytes]
    device_code: dict[str, bytes] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    exports: dict[str, tuple[str, ...]] = field(default_factory=dict)
    decisions: Sequence[Decision] = ()
    placements: Sequence[Placement] = ()
    info: dict[str, Any] = field(default_factory=dict)
    times: dict[str, Any] = field(default_factory=dict)
    file: MappedFile | None = None


# --- save -----------------------------------------------------------------------------------------


def save(parts: EngineParts, path: str | os.PathLike[str]) -> None:
    """Writes an engine; an existing file is replaced only when the new one is complete.

    Raises:
        CacheError: the folder cannot be written, the disk is full, or it is no plain file.
        BadOption: ``path`` is no path.
        CorruptEngine: the file that the engine was loaded from was written over.
    """
    if parts.file is not None:
        parts.file.check()
    with whole_file(path) as unfinished, unfinished.open("wb") as file:
        _write(parts, file)
        if parts.file is not None:  # what was written was read from there
            parts.file.check()


def _write(parts: EngineParts, file: Any) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        hashes: dict[str, str] = {}

        def member(name: str, data: bytes, compress: bool = False) -> None:
            entry = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
            archive.writestr(entry, data)
            hashes[name] = piece_hash.hash_of(data)

        table = {
            name: [_dtype(a).name, list(a.shape)] for name, a in sorted(parts.constants.items())
        }
        strings = {
            name: [str(part) for part in parts.constants[name].reshape(-1).tolist()]
            for name, (dtype, _) in table.items()
            if dtype == "string"
        }
        entry = zipfile.ZipInfo(WEIGHTS, date_time=(1980, 1, 1, 0, 0, 0))
        entry.extra = _EXTRA.pack(_EXTRA_KIND, _EXTRA_BYTES) + bytes(_EXTRA_BYTES)
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
        record = {
            "decisions": encode(tuple(parts.decisions)),
            "placements": encode(tuple(parts.placements)),
        }
        member(RECORD, _json(record), compress=True)
        sizes = DimTable()
        document = {
            "format": FORMAT,
            "info": encode(parts.info),
            "program": encode(parts.program, sizes),
            "sizes": sizes.entries,
            "constants": table,
            "strings": strings,
            "exports": {key: list(names) for key, names in sorted(parts.exports.items())},
            "hashes": dict(hashes),
        }
        member("engine.json", _json(document), compress=True)
        member("engine.sha256", hashes["engine.json"].encode())


def _json(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":"), allow_nan=False).encode()


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
    document = _parse("engine.json", text)
    if document.get("format") != FORMAT:
        raise CorruptEngine(
            f"the file has format {document.get('format')!r}, this version reads {FORMAT}",
            remedy="build the engine again with this version of tilewright",
        )
    try:
        return _assemble(archive, document)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptEngine(f"engine.json is not complete: {error}", remedy=_REMEDY) from error


def _parse(name: str, text: bytes) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CorruptEngine(f"{name} is not JSON: {error}", remedy=_REMEDY) from error
    if not isinstance(document, dict):
        raise CorruptEngine(f"{name} is not an object", remedy=_REMEDY)
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


def _stored(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> members.Stored:
    try:
        found = members.stored(archive, entry)
    except _MEMBER_ERRORS as error:
        raise CorruptEngine(f"{entry.filename} cannot be read: {error}", remedy=_REMEDY) from error
    return found or members.Stored(memoryview(_member(archive, entry.filename)))


def _assemble(archive: zipfile.ZipFile, document: dict[str, Any]) -> EngineParts:
    hashes: dict[str, str] = document["hashes"]
    known = {"engine.json", "engine.sha256", *hashes}
    entries = {entry.filename: entry for entry in archive.infolist()}
    unknown, missing = sorted(set(entries) - known), sorted(known - set(entries))
    if unknown:
        raise CorruptEngine(f"an unknown member {unknown[0]}", remedy=_REMEDY)
    if missing:
        raise CorruptEngine(f"missing members {missing[:5]}", remedy=_REMEDY)
    weights = _stored(archive, entries[WEIGHTS])
    with piece_hash.hashing(weights.data, weights.forget) as hashed:
        kernels = [name for name in hashes if name.startswith("kernels/")]
        codes = {name: _member(archive, name) for name in kernels if not name.endswith(_SOURCES)}
        for name, code in codes.items():
            _check_hash(name, piece_hash.hash_of(code), hashes)
        program = decode(document["program"], read_dims(document["sizes"]))
        if not isinstance(program, Program):
            raise CorruptEngine("engine.json holds no program", remedy=_REMEDY)
        info = _info(decode(document["info"]))
        _check_hash(WEIGHTS, hashed(), hashes)  # it was computed all the while
    if weights.file is not None:
        weights.file.watch(weights.data, hashes[WEIGHTS])
    constants = read_weights(weights.data, document["constants"], document["strings"])
    exports = {key: tuple(map(str, names)) for key, names in document["exports"].items()}
    check_program(program, constants, exports)
    later = _Later(archive, [RECORD, *(n for n in kernels if n.endswith(_SOURCES))], hashes)
    return EngineParts(
        program=program,
        constants=constants,
        objects={_key(name): code for name, code in codes.items() if name.endswith(".o")},
        device_code={
            name.removeprefix("kernels/"): code
            for name, code in codes.items()
            if name.endswith((".cubin", ".ptx"))
        },
        sources=later.sources(),
        exports=exports,
        decisions=LaterSequence(lambda: later.records("decisions", Decision)),
        placements=LaterSequence(lambda: later.records("placements", Placement)),
        info=info,
        file=weights.file,
    )


def _key(name: str) -> str:
    """The key of a kernel whose code or source is the member of that name."""
    return name.removeprefix("kernels/").rsplit(".", 1)[0]


def _check_hash(name: str, found: str, hashes: Mapping[str, str]) -> None:
    if found != hashes[name]:
        raise CorruptEngine(f"{name} does not match its hash", remedy=_REMEDY)


class _Later:
    """Members that only tell something: read now, as the file may go, checked when looked at."""

    def __init__(
        self, archive: zipfile.ZipFile, names: Sequence[str], hashes: Mapping[str, str]
    ) -> None:
        self._file = archive.filename
        self._hashes = {name: hashes[name] for name in names}
        entries = [archive.getinfo(name) for name in names]
        self._packed = {e.filename: (e, members.packed(archive, e)) for e in entries}

    def sources(self) -> Mapping[str, str]:
        """Sources by kernel key."""
        names = {_key(name): name for name in self._packed if name != RECORD}
        return LaterMapping(names, lambda key: self._text(names[key]))

    def records(self, part: str, kind: type[T]) -> Sequence[T]:
        """A part of the record.

        Raises:
            CorruptEngine: it is damaged.
        """
        found = decode(_parse(RECORD, self._content(RECORD)).get(part))
        if not isinstance(found, tuple) or not all(isinstance(one, kind) for one in found):
            raise CorruptEngine(f"{RECORD} has no {part}", file=self._file, remedy=_REMEDY)
        return found

    def _text(self, name: str) -> str:
        try:
            return self._content(name).decode()
        except UnicodeDecodeError as error:
            reason = f"{name} is no text: {error}"
            raise CorruptEngine(reason, file=self._file, remedy=_REMEDY) from error

    def _content(self, name: str) -> bytes:
        entry, data = self._packed[name]
        try:
            content = members.unpacked(data, entry)
            _check_hash(name, piece_hash.hash_of(content), self._hashes)
        except zlib.error as error:
            reason = f"{name} cannot be read: {error}"
            raise CorruptEngine(reason, file=self._file, remedy=_REMEDY) from error
        except CorruptEngine as error:
            error.file = self._file
            raise
        return content


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
