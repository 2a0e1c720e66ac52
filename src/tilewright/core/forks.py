"""Locks that are free in the child of a fork.

Input -> Output: an object and the names of its locks -> new locks there in every forked child.
A fork copies only the thread that asks for it: a lock that another one holds at that moment would
never be released in the child.
Not here: threads, which a child has to start by itself (runtime.cpu.threads).
"""

from __future__ import annotations

import os
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

_owners: WeakKeyDictionary[Any, tuple[str, ...]] = WeakKeyDictionary()


def renew_in_child(owner: Any, *names: str) -> None:
    """Has the attributes of an object or module be new locks in a forked child."""
    _owners[owner] = names


def _renew() -> None:
    for owner, names in list(_owners.items()):
        for name in names:
            setattr(owner, name, Lock())


os.register_at_fork(after_in_child=_renew)
