"""The runtimes that can be compared, a file each.

To add one: a function that opens a model with so many threads in a precision, and a line in
``OPENERS``.
"""

from collections.abc import Callable
from pathlib import Path

from tilewright.compiler.bench.peers.onnxruntime import open_onnxruntime
from tilewright.compiler.bench.peers.opened import Opened
from tilewright.compiler.bench.peers.openvino import open_openvino
from tilewright.compiler.bench.peers.tilewright import open_tilewright
from tilewright.compiler.bench.peers.torch import open_torch, open_torch_compile

OURS = "tilewright"
CANARY = "canary"  # no runtime: what the processors can do
OPENERS: dict[str, Callable[[Path, int, str], Opened]] = {
    OURS: open_tilewright,
    "onnxruntime": open_onnxruntime,
    "openvino": open_openvino,
    "torch": open_torch,
    "torch.compile": open_torch_compile,
}
PEERS = tuple(name for name in OPENERS if name != OURS)
