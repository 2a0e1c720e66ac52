"""Hopper's matrix instructions as C++: one specialisation for each number of columns.

Input -> Output: columns of a block -> text that ``deep.cuh`` uses where the architecture has them.
"""

from __future__ import annotations


def wgmma_text(columns: int) -> str:
    """``TwWgmma<columns>::add(sums, left, right)``: 64 rows by 16 of the depth, by 4 warps."""
    count = columns // 2
    registers = ", ".join(f"%{k}" for k in range(count))
    sums = ", ".join(f'"+f"(d[{k // 4}][{k % 4}])' for k in range(count))
    name = f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.f16.f16"
    return f"""#if TW_WGMMA
template <> struct TwWgmma<{columns}> {{
  static __device__ __forceinline__ void add(float (&d)[{columns // 8}][4], u64 left, u64 right) {{
    asm volatile("{{\\n.reg .pred p;\\nsetp.ne.b32 p, 1, 0;\\n"
                 "{name} {{{registers}}}, %{count}, %{count + 1}, p, 1, 1, 0, 0;\\n}}"
                 : {sums} : "l"(left), "l"(right));
  }}
}};
#endif
"""
