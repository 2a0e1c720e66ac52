"""Hopper's matrix instructions as C++: one specialisation for each number of columns and types.

Input -> Output: columns of a block, elements -> text that ``deep.cuh`` uses where the architecture
has them.
"""

from __future__ import annotations

from tilewright.codegen.cuda.elements import Elements
from tilewright.core.dtypes import FLOAT32

_DEPTH_BYTES = 32  # of a row that one instruction multiplies


def wgmma_text(columns: int, elements: Elements) -> str:
    """``TwWgmma<columns, elements>::add(sums, left, right, more)``: 64 rows by 32 bytes, by 4
    warps; without ``more``, these are the first products of the sums.
    """
    count = columns // 2
    is_float = elements.total is FLOAT32
    registers = ", ".join(f"%{k}" for k in range(count))
    kind = "f" if is_float else "r"
    sums = ", ".join(f'"+{kind}"(d[{k // 4}][{k % 4}])' for k in range(count))
    shape = f"m64n{columns}k{_DEPTH_BYTES // elements.bytes}"
    name = f"wgmma.mma_async.sync.aligned.{shape}.{elements.ptx}"
    # Factors of the operands, and for 16 bits their orders; integers have neither.
    flags = ("" if not is_float else ", 1, 1") + (", 0, 0" if elements.bytes > 1 else "")
    total = "float" if is_float else "s32"
    return f"""#if TW_WGMMA
template <> struct TwWgmma<{columns}, {elements.name}> {{
  static __device__ __forceinline__ void add({total} (&d)[{columns // 8}][4], u64 left,
                                             u64 right, int more = 1) {{
    asm volatile("{{\\n.reg .pred p;\\nsetp.ne.b32 p, %{count + 2}, 0;\\n"
                 "{name} {{{registers}}}, %{count}, %{count + 1}, p{flags};\\n}}"
                 : {sums} : "l"(left), "l"(right), "r"(more));
  }}
}};
#endif
"""
