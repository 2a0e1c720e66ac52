"""Damages engine files: bytes, members, JSON, and the zip around them.

Input -> Output: the bytes of valid engines and a random generator -> hostile bytes.
Guarantees: most results have right hashes, so that what lies behind the hashes is reached.
Not here: running them (worker).
"""

from __future__ import annotations

import hashlib
import io
import json
import random
import warnings
import zipfile
from collections.abc import Sequence
from typing import Any

from fuzz.mutate_models import INTEGERS, damage_bytes

_BOMB = 32 << 20


def mutate(rng: random.Random, seeds: Sequence[bytes]) -> bytes:
    """A damaged engine file."""
    data = rng.choice(seeds)
    if rng.random() < 0.15:
        return damage_bytes(rng, data)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    roll = rng.random()
    if roll < 0.7:
        _change_document(rng, members)
    if roll > 0.55:
        _change_members(rng, members)
    if rng.random() < 0.85:
        _seal(members)
    return _pack(rng, members)


# --- the document ---------------------------------------------------------------------------------


def _change_document(rng: random.Random, members: dict[str, bytes]) -> None:
    name = rng.choice(("engine.json", "engine.json", "engine.json", "record.json"))
    document = json.loads(members[name])
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        document = _change_value(rng, document)
    text = json.dumps(document)
    if rng.random() < 0.05:
        text = rng.choice(
            (
                "[" * 200_000,
                '{"a":' * 100_000,
                text[:-2],
                "NaN",
                "",
                "null",
                "9" * 100_000,
                '"' + "x" * 10,
            )
        )
    members[name] = text.encode()


def _change_value(rng: random.Random, document: Any) -> Any:
    """Replaces, removes, adds or repeats something at a random place."""
    if not isinstance(document, dict | list) or not document:
        return _hostile(rng)
    holder, key = document, rng.choice(_keys(document))
    while isinstance(holder[key], dict | list) and holder[key] and rng.random() < 0.88:
        holder = holder[key]
        key = rng.choice(_keys(holder))
    kind = rng.randrange(6)
    if kind <= 2:
        holder[key] = _near(rng, holder[key]) if rng.random() < 0.5 else _hostile(rng)
    elif kind == 3:
        del holder[key]
    elif isinstance(holder, dict):
        holder[rng.choice(("$record", "$map", "$dim", "$array", "extra", "name", ""))] = _hostile(
            rng
        )
    else:
        holder.insert(rng.randrange(len(holder) + 1), holder[key])
    return document


def _keys(holder: Any) -> list[Any]:
    return list(holder) if isinstance(holder, dict) else list(range(len(holder)))


def _near(rng: random.Random, value: Any) -> Any:
    """Another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return rng.choice((value + 1, value - 1, -value, value * 1000, *INTEGERS))
    if isinstance(value, str):
        options = (
            "",
            value + "x",
            value[:-1],
            value * 50,
            "n",
            "n*n",
            "-1",
            "Segment",
            "Relu",
            "0" * 99,
        )
        return rng.choice(options)
    if isinstance(value, list):
        return rng.choice(([], value * 2, value[::-1], value[:1]))
    return {}


def _hostile(rng: random.Random) -> Any:
    deep: Any = 0
    for _ in range(rng.choice((1, 90, 250))):
        deep = [deep] if rng.random() < 0.5 else {"$map": {"a": deep}}
    return rng.choice(
        (
            None,
            True,
            rng.choice(INTEGERS),
            10**400,
            1e308,
            "",
            "../x",
            "x" * 100_000,
            [],
            {},
            deep,
            {"$dim": rng.choice((*INTEGERS, 0, 1, 5, 30, 100))},
            [[1, *[0] * rng.choice((1, 5, 300, 5000))]],
            [[10**400, 0]],
            [[1, 0]] * rng.choice((2, 200, 5000)),
            [rng.choice(("floordiv", "mod", "max", "system")), rng.randrange(9), rng.randrange(9)],
            "n" * rng.choice((1, 20_000)),
            {"$array": ["float32", [2**40], "AAAA"]},
            {"$array": ["float32", [0, 2**62], ""]},
            {"$array": ["float32", [-1, -1], "AAAA"]},
            {"$record": "Program"},
            {"$record": "TensorSpec", "name": 1, "dtype": 2, "shape": 3},
            {"$float": "nan"},
            {"$bytes": "!!!"},
            {"$dtype": "float99"},
        )
    )


# --- members --------------------------------------------------------------------------------------


def _change_members(rng: random.Random, members: dict[str, bytes]) -> None:
    name = rng.choice(list(members))
    kind = rng.randrange(8)
    if kind == 0:
        del members[name]
    elif kind == 1:
        members[name] = members[rng.choice(list(members))]
    elif kind == 2:
        members[rng.choice(("extra", "kernels/x.o", "../up", "/abs", "kernels/", "a\\b"))] = b"x"
    elif kind == 3:
        members[name] = b""
    elif kind == 4:
        members["weights.safetensors"] = _weights(rng, members.get("weights.safetensors", b""))
    elif kind == 5:
        members[name] = bytes(rng.choice((_BOMB, 4 * _BOMB)))
    else:
        members[name] = damage_bytes(rng, members[name])


def _weights(rng: random.Random, data: bytes) -> bytes:
    """A header of safetensors that lies."""
    entry = {
        "dtype": "U8",
        "shape": [rng.choice(INTEGERS)],
        "data_offsets": [0, rng.choice(INTEGERS)],
    }
    header = rng.choice(
        (
            json.dumps({"w": entry}).encode(),
            b"{" * 50_000,
            json.dumps({"__metadata__": {"a": "b"}}).encode(),
            b"",
        )
    )
    length = rng.choice((len(header), 2**63 - 1, 0, 2**32))
    return length.to_bytes(8, "little") + header + data[8:]


def _seal(members: dict[str, bytes]) -> None:
    """Makes the hashes right again, where there still is something to hash."""
    text = members.get("engine.json")
    if text is None:
        return
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = None
    if isinstance(document, dict) and isinstance(document.get("hashes"), dict):
        document["hashes"] = {
            name: hashlib.sha256(data).hexdigest()
            for name, data in members.items()
            if name not in ("engine.json", "engine.sha256")
        }
        try:
            members["engine.json"] = text = json.dumps(document).encode()
        except (ValueError, RecursionError):
            return
    if "engine.sha256" in members:
        members["engine.sha256"] = hashlib.sha256(text).hexdigest().encode()


# --- the zip --------------------------------------------------------------------------------------


def _pack(rng: random.Random, members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    method = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED))
    if rng.random() < 0.03:
        method = zipfile.ZIP_BZIP2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of names that occur twice
        with zipfile.ZipFile(buffer, "w", method) as archive:
            for name, data in members.items():
                archive.writestr(name, data)
            if rng.random() < 0.05:
                archive.writestr(rng.choice(list(members) or ["a"]), b"again")
    packed = buffer.getvalue()
    if rng.random() < 0.1:
        return damage_bytes(rng, packed)
    if rng.random() < 0.05:  # the directory states other sizes
        place = packed.rfind(b"PK\x01\x02")
        changed = bytearray(packed)
        changed[place + 20 : place + 28] = rng.choice((b"\xff" * 8, b"\0" * 8, b"\x10\0\0\0" * 2))
        return bytes(changed)
    return packed
