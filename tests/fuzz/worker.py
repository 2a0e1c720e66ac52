"""Runs mutated inputs one by one in a process of its own, and says how each ended.

Input -> Output: ``python worker.py KIND FIRST COUNT FOLDER`` -> a line before and after each case.
Guarantees: memory is limited; a case that ends the process is the last one named.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import random
import resource
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

_TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(_TESTS), str(_TESTS.parent / "src")]

GROWTH_BYTES = 1 << 30
RUN_ELEMENTS = 4096


def _say(**what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def limit_memory() -> None:
    """No more than ``GROWTH_BYTES`` beyond what is mapped by now."""
    with open("/proc/self/statm") as file:
        mapped = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    limit = mapped + GROWTH_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def prepare(kind: str, folder: Path) -> Callable[[random.Random], Iterator[None]]:
    """What runs one case: its first step makes the input, the second one tries it."""
    import tilewright as tw
    from fuzz import mutate_engines, mutate_models, seeds

    if kind == "models":
        sources = seeds.models()

        def compile_one(rng: random.Random) -> Iterator[None]:
            data = mutate_models.mutate(rng, sources)
            yield
            _run(tw.compile(data, verify=False, threads=1))

        for source in sources:
            _run(tw.compile(source, verify=False, threads=1))
        return compile_one

    made = seeds.engines(folder)
    path = folder / "case.tw"

    def load_one(rng: random.Random) -> Iterator[None]:
        path.write_bytes(mutate_engines.mutate(rng, made))
        yield
        engine = tw.load(path, threads=1)
        _ = engine.decisions, engine.placements, dict(engine.parts.sources)

    for data in made:
        path.write_bytes(data)
        _run(tw.load(path, threads=1))
    return load_one


def _run(engine: object) -> None:
    """One run on random inputs, where some of few elements fit the declaration."""
    from tilewright.runtime.engine import Engine
    from tilewright.runtime.example_feeds import make_feeds
    from tilewright.runtime.program import Repeat

    assert isinstance(engine, Engine)
    if any(isinstance(step, Repeat) for step in engine.program.steps):
        return  # as many trips as the model says are no fault
    specs = engine.inputs
    if any(
        spec.shape is None or spec.container != "tensor" or spec.dtype.name == "string"
        for spec in specs
    ):
        return
    names = {name for spec in specs for dim in spec.shape or () for name in dim.symbols}
    sizes = dict.fromkeys(names, 2)
    for spec in specs:
        count = 1
        for dim in spec.shape or ():
            count *= max(0, dim.evaluate(sizes))
        if count > RUN_ELEMENTS:
            return
    engine.run(make_feeds(specs, sizes))


def main(kind: str, first: int, count: int, folder: Path) -> None:
    """Runs the cases of consecutive seeds."""
    from tilewright.core.errors import UserError

    warnings.simplefilter("error")
    faulthandler.enable()
    one = prepare(kind, folder)
    limit_memory()
    for seed in range(first, first + count):
        _say(seed=seed)
        steps = one(random.Random(seed))
        next(steps)
        before, start = _resident(), time.perf_counter()
        outcome, detail = "success", ""
        try:
            next(steps, None)
        except UserError as error:
            outcome = type(error).__name__
            if not error.message:
                outcome, detail = "fault", "an error without a message"
        except BaseException as error:  # noqa: BLE001 - that is what we look for
            outcome, detail = "fault", "".join(traceback.format_exception(error))[-3000:]
        seconds = time.perf_counter() - start
        gc.collect()
        _say(
            seed=seed,
            outcome=outcome,
            detail=detail,
            seconds=round(seconds, 2),
            growth=_resident() - before,
        )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
