"""Scalar expressions to instructions, many copies at a time.

Input -> Output: an ``Expr`` and a variant (which copy of each unrolled axis) -> a ``Value``.
Guarantees: a sub-expression is computed once for all variants that it does not distinguish;
reductions run one loop for all variants together; masked lanes touch no memory; untaken branches
are not executed.
Not here: loops over the stage's axes and stores (codegen.cpu.generate), meaning of operations
(scalar).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.codegen.cpu.additions import Line, clamped_lines
from tilewright.codegen.cpu.byte_sums import emit_byte_sum
from tilewright.codegen.cpu.convert import emit_cast, emit_constant, register_type
from tilewright.codegen.cpu.emit import I32, I64, PTR, Builder, Value, constant, index
from tilewright.codegen.cpu.frame import Positions, Variant
from tilewright.codegen.cpu.kept import Kept
from tilewright.codegen.cpu.layout import CALL_SLOT, STATUS_SLOT, ArgumentLayout
from tilewright.codegen.cpu.memory import load_element
from tilewright.codegen.cpu.reductions import Reducer
from tilewright.codegen.cpu.rounding import (
    emit_quotient,
    emit_rounded,
    emit_saturated,
    quotient_in,
    rounded_number,
    saturated_number,
    saturates,
)
from tilewright.codegen.cpu.scalar import emit_op
from tilewright.codegen.cpu.small_floats import emit_flushed_bfloat16
from tilewright.core.dtypes import DType
from tilewright.core.errors import InternalError
from tilewright.kernel.affine import Affine
from tilewright.kernel.bfloat16 import rounded_float
from tilewright.kernel.byte_sums import sum_of_bytes
from tilewright.kernel.ir import (
    AxisVar,
    Call,
    Cast,
    Const,
    DimValue,
    Expr,
    Load,
    Reduce,
    Stage,
    walk,
)
from tilewright.kernel.limits import limited
from tilewright.kernel.nest import Nest
from tilewright.kernel.schedule import Schedule

_MAX_RECURSION = 60


class Evaluator(Positions):
    """Evaluates the expressions of one nest inside one function."""

    def __init__(
        self,
        builder: Builder,
        nest: Nest,
        layout: ArgumentLayout,
        args: Value,
        schedule: Schedule,
        ahead: Mapping[int, int] | None = None,
        lines: Mapping[int, range] | None = None,
    ) -> None:
        super().__init__(builder, nest, layout, args)
        self.reduce_lanes = schedule.reduce_lanes
        self.depth = schedule.depth
        self.slant = schedule.slant
        self.ahead = ahead or {}
        self.lines = lines or {}
        self.kept = Kept(self)
        self.reducer = Reducer(self)
        self._lines = clamped_lines(nest) if builder.target.has_fma else {}
        self._changing = _reading({store.buffer for store in nest.stage.stores}, nest.stage)

    def is_vector(self, expr: Expr) -> bool:
        """True when the lanes of an expression may differ."""
        return self.frame.vector is not None and self.frame.vector in self.nest.depends(expr)

    # --- expressions -----------------------------------------------------------------------------

    def recall(self, key: tuple[object, ...]) -> Value | None:
        """What is known under a key; a sum that waits for its last steps takes them."""
        found = super().recall(key)
        if found is None and self.reducer.last_steps.complete(key):
            return super().recall(key)
        return found

    def value(self, expr: Expr, variant: Variant) -> Value:
        """The expression's value for one variant: a scalar, or a vector if lanes may differ."""
        if isinstance(expr, Const):
            return emit_constant(expr.value, expr.dtype)
        if isinstance(expr, DimValue):
            return self.dim(expr.dim)
        key = self._key(expr, variant)
        found = self.recall(key)
        if found is None:
            found = self.kept.find(expr, variant)
        if found is not None:
            return found
        if isinstance(expr, Reduce):
            self.reducer.reduce(expr, variant)
            found = self.recall(key)
            if found is None:
                raise InternalError("a reduction left no value")
            return found
        if expr.height > _MAX_RECURSION:
            for operand in self._operands(expr, variant):
                self.value(operand, variant)
        return self.remember(key, self._compute(expr, variant))

    def _key(self, expr: Expr, variant: Variant) -> tuple[object, ...]:
        return (id(expr), *self.project(self.nest.depends(expr), variant))

    def _operands(self, root: Expr, variant: Variant) -> list[Expr]:
        """What has to be computed for the root, operands first: recursion is for short ones."""
        found: dict[int, Expr] = {}
        stack = [(root, False)]
        while stack:
            node, ready = stack.pop()
            if id(node) in found:
                continue
            if ready:
                found[id(node)] = node
                continue
            stack.append((node, True))
            stack.extend(
                (child, False)
                for child in reversed(self._always(node))
                if self.recall(self._key(child, variant)) is None
            )
        del found[id(root)]
        return list(found.values())

    def _always(self, node: Expr) -> Sequence[Expr]:
        """The operands that are computed wherever the node is."""
        if isinstance(node, Reduce):
            return ()
        if isinstance(node, Load):
            return [part for part, _ in self.nest.loads[id(node)].rest]
        return (
            node.children[:1] if isinstance(node, Call) and node.op == "select" else node.children
        )

    def _compute(self, expr: Expr, variant: Variant) -> Value:
        match expr:
            case AxisVar():
                return self._axis(expr.name, variant)
            case Load():
                return self._load(expr, variant)
            case Cast():
                return self._cast(expr, variant)
            case Call():
                if expr.op == "select":
                    return self._select(expr, variant)
                if expr.op == "checked_index":
                    return self._checked(expr, variant)
                begun = self.reducer.begun(expr, variant)
                if begun is not None:
                    return begun
                if id(expr) in self._lines:
                    return self._line(self._lines[id(expr)], variant)
                args = [self.value(arg, variant) for arg in expr.args]
                if expr.op == "blend":
                    return self._blend(*args)
                lanes = max(arg.type.lanes for arg in args)
                spread = [self.b.splat(arg, lanes) for arg in args]
                return emit_op(self.b, expr.op, spread, expr.args[0].dtype)
        raise InternalError(f"no code for {type(expr).__name__}")

    def _line(self, line: Line, variant: Variant) -> Value:
        place = self.value(line.place, variant)
        slope, height = (
            emit_constant(end.value, end.dtype, place.type.lanes)
            for end in (line.slope, line.height)
        )
        return self.b.fma(place, slope, height)

    def _axis(self, axis: str, variant: Variant) -> Value:
        start = self.at(axis, variant)
        if axis != self.frame.vector:
            return start
        spread = self.splat(start)
        return self.b.add(spread, self.b.iota(spread.type))

    def _cast(self, expr: Cast, variant: Variant) -> Value:
        number, inside = rounded_number(expr), saturated_number(expr)
        if number is not None:
            return emit_rounded(self.b, self._limited(number, number, variant))
        if inside is not None and saturates(self.b, self.frame.lanes):
            limits = expr.arg.children[0].children[0]
            return emit_saturated(self.b, self.splat(self._limited(limits, inside, variant)))
        whole = rounded_float(expr)
        if whole is not None:
            found = emit_flushed_bfloat16(self.b, self.value(whole, variant))
            if found is not None:
                return found
        arg = self.value(expr.arg, variant)
        return emit_cast(
            self.b, arg, expr.arg.dtype, expr.dtype, saturate=expr.saturate, bits=expr.bits
        )

    def _limited(self, number: Expr, wanted: Expr, variant: Variant) -> Value:
        """A part of a number that is about to be rounded; for that alone it may be shortened."""
        found = self._shortened(number, variant)
        if found is None:
            return self.value(wanted, variant)
        with self.scope():
            self.remember(self._key(found[0], variant), found[1])
            return self.value(wanted, variant)

    def _shortened(self, number: Expr, variant: Variant) -> tuple[Expr, Value] | None:
        """What lies inside of limits, and its value, where rounding allows a shorter way."""
        found = limited(number)
        if found is None or not self.b.target.has_fma:
            return None
        total, quotient = sum_of_bytes(number), quotient_in(number)
        if total is not None:
            leaves = [self.value(leaf, variant) for leaf in total.leaves]
            return found[0], emit_byte_sum(self.b, total, leaves)
        if quotient is None or not isinstance(quotient.args[1], Const):
            return None
        top = self.value(quotient.args[0], variant)
        return quotient, emit_quotient(self.b, top, float(quotient.args[1].value))

    # --- memory ----------------------------------------------------------------------------------

    def _sum(self, a: Value, b: Value) -> Value:
        lanes = max(a.type.lanes, b.type.lanes)
        return self.b.add(self.b.splat(a, lanes), self.b.splat(b, lanes))

    def partial(self, form: Affine, key: int, variant: Variant, rest: Value | None = None) -> Value:
        """The sum of the terms on bound axes; remembered, so that outer loops compute it once.

        ``rest`` is added to it, before what differs between copies.

        Copies share the first one's sum: what they lie behind it is a number that instructions
        hold where the stride is known, and the same for all steps of a loop where it is not.
        """
        total = self._first(form, key, (0,) * len(variant))
        if rest is not None:
            total = self.b.add(total, rest)
        behind = 0
        for axis, (place, distance) in self.frame.unrolled.items():
            steps = variant[place] * distance
            if steps and axis in form.terms and axis in self.frame.position:
                stride = form.terms[axis]
                if stride.is_const:
                    behind += steps * stride.const
                else:
                    total = self.b.add(total, self.b.mul(index(steps), self.dim(stride)))
        return self.b.add(total, index(behind))

    def _first(self, form: Affine, key: int, variant: Variant) -> Value:
        """The sum of the terms on bound axes for the first copies."""
        bound = frozenset(axis for axis in form.terms if axis in self.frame.position)
        total: Value | None = None
        done: frozenset[str] = frozenset()
        for scope in reversed(self.frame.scopes):
            for axes, seen, value in scope.partials.get(key, ()):
                better = total is None or len(axes) > len(done)
                if better and axes <= bound and seen == self.project(axes, variant):
                    total, done = value, axes
        if total is None:
            total = self.dim(form.offset)
        elif done == bound:
            return total
        for axis in sorted(bound - done):
            step = self.b.mul(self.at(axis, variant), self.dim(form.terms[axis]))
            total = self.b.add(total, step)
        known = self.frame.scopes[-1].partials.setdefault(key, [])
        known.append((bound, self.project(bound, variant), total))
        return total

    def place(self, form: Affine, key: int, variant: Variant) -> tuple[Value, int | Value | None]:
        """Element index and lane stride (0: one scalar; None: the index already has lanes)."""
        if not all(axis in self.frame.position for axis in form.terms):
            raise InternalError(f"unbound axes in {form}")
        rest = index(0)
        vector = self.frame.vector
        for part, factor in form.rest:
            value = self.value(part, variant)
            scale = self.b.splat(self.dim(factor), value.type.lanes)
            rest = self._sum(rest, self.b.mul(value, scale))
        if rest.type.lanes > 1:
            start = self._sum(rest, self.partial(form, key, variant))
        else:
            start = self.partial(form, key, variant, rest)
        stride = form.terms.get(vector) if vector is not None else None
        if start.type.lanes > 1:
            if stride is not None:
                steps = self.b.mul(self.b.iota(start.type), self.splat(self.dim(stride)))
                start = self.b.add(start, steps)
            return start, None
        if stride is None:
            return start, 0
        return start, stride.const if stride.is_const else self.dim(stride)

    def _load(self, expr: Load, variant: Variant) -> Value:
        where, stride = self.place(self.nest.loads[id(expr)], id(expr), variant)
        pointer = self.pointer(expr.buffer)
        mask = self.mask(variant)
        if stride == 0:
            if mask is None:
                return load_element(self.b, pointer, where, expr.dtype, 1, stride=1, mask=None)
            return self._guarded_scalar_load(pointer, where, expr.dtype, mask)
        return load_element(
            self.b,
            pointer,
            where,
            expr.dtype,
            self.frame.lanes,
            stride=stride,
            mask=mask,
            active=self.active(variant),
        )

    def _guarded_scalar_load(
        self, pointer: Value, where: Value, dtype: DType, mask: Value
    ) -> Value:
        """One element for all lanes, read only if some lane is active."""
        if self.frame.guard is None:
            # The tail alone always has an active lane.
            return load_element(self.b, pointer, where, dtype, 1, stride=1, mask=None)
        active = self.b.any_lane(mask)
        safe = self.b.select(active, where, index(0))
        zero = constant(register_type(dtype, 1), 0)
        return self.b.if_else(
            active,
            lambda: load_element(self.b, pointer, safe, dtype, 1, stride=1, mask=None),
            lambda: zero,
        )

    def ask_ahead(self, expr: Load, variant: Variant) -> None:
        """Asks for what lies behind a load, by the distance known for it."""
        self._ask(expr, variant, self.ahead[id(expr)], locality=2)

    def ask_lines(self, expr: Load, variant: Variant) -> None:
        """Asks for the lines of the next tile that are known for a load."""
        for distance in self.lines[id(expr)]:
            self._ask(expr, variant, distance, locality=3)

    def _ask(self, expr: Load, variant: Variant, distance: int, locality: int) -> None:
        where, _ = self.place(self.nest.loads[id(expr)], id(expr), variant)
        address = self.b.gep(self.pointer(expr.buffer), where, expr.dtype.storage_bytes)
        self.b.prefetch(self.b.gep(address, distance), locality=locality)

    # --- choice ----------------------------------------------------------------------------------

    def _select(self, expr: Call, variant: Variant) -> Value:
        condition = self.value(expr.args[0], variant)
        then, otherwise = expr.args[1], expr.args[2]
        if all(_is_safe(branch) for branch in (then, otherwise)):
            return self._blend(condition, self.value(then, variant), self.value(otherwise, variant))
        vector = condition.type.lanes > 1 or self.is_vector(then) or self.is_vector(otherwise)
        heavy = any(isinstance(node, Reduce) for node in walk(then, otherwise))
        if vector and (condition.type.lanes > 1 or not heavy):
            left = self._under(condition, then, variant)
            right = self._under(self.b.not_(condition), otherwise, variant)
            return self._blend(condition, left, right)
        return self.b.if_else(
            condition,
            lambda: self._in_branch(then, variant, vector),
            lambda: self._in_branch(otherwise, variant, vector),
        )

    def _in_branch(self, expr: Expr, variant: Variant, vector: bool) -> Value:
        self.frame.branches += 1
        with self.scope():
            value = self.value(expr, variant)
            value = self.splat(value) if vector else value
        self.frame.branches -= 1
        return value

    def _under(self, condition: Value, expr: Expr, variant: Variant) -> Value:
        """Evaluates a branch with the lanes of the condition only."""
        if _is_safe(expr):
            return self.value(expr, variant)
        saved = self.frame.guard
        mask = self.splat(condition)
        self.frame.guard = mask if saved is None else self.b.and_(saved, mask)
        with self.scope():
            value = self.value(expr, variant)
        self.frame.guard = saved
        return value

    def _blend(self, condition: Value, then: Value, otherwise: Value) -> Value:
        lanes = max(condition.type.lanes, then.type.lanes, otherwise.type.lanes)
        if condition.type.lanes > 1:
            condition = self.b.splat(condition, lanes)
        return self.b.select(condition, self.b.splat(then, lanes), self.b.splat(otherwise, lanes))

    def _checked(self, expr: Call, variant: Variant) -> Value:
        """Wraps a negative index once; outside of the range it reports and yields 0."""
        position, size = (self.value(arg, variant) for arg in expr.args)
        lanes = max(position.type.lanes, size.type.lanes)
        position, size = self.b.splat(position, lanes), self.b.splat(size, lanes)
        zero = constant(position.type, 0)
        negative = self.b.icmp("slt", position, zero)
        wrapped = self.b.select(negative, self.b.add(position, size), position)
        bad = self.b.icmp("uge", wrapped, size)
        mask = self.mask(variant) if self.frame.vector else None
        if mask is not None:
            active = mask if lanes > 1 else self.b.any_lane(mask)
            bad = self.b.and_(bad, active)
        with self.b.when(self.b.any_lane(bad)):
            status = self.slot(STATUS_SLOT, PTR)
            call = self.b.add(self.slot(CALL_SLOT, I64), index(1))
            self.b.store(call, status, 8)
        return (
            self.b.select(bad, zero, wrapped)
            if mask is None
            else self._zero_bad(wrapped, size, zero)
        )

    def _zero_bad(self, wrapped: Value, size: Value, zero: Value) -> Value:
        # Inactive lanes may hold anything; they too must give an index inside.
        return self.b.select(self.b.icmp("uge", wrapped, size), zero, wrapped)

    # --- hoisting --------------------------------------------------------------------------------

    def hoist(self, roots: Sequence[Expr], variants: Sequence[Variant]) -> None:
        """Computes what depends on bound axes only, before a loop is entered."""
        bound = frozenset(self.frame.position)
        for expr in self._hoistable(roots, bound):
            for variant in variants:
                self.value(expr, variant)
        for expr in walk(*roots):
            if isinstance(expr, Load) and id(expr) in self.nest.loads:
                form = self.nest.loads[id(expr)]
                if form.terms and not all(axis in bound for axis in form.terms):
                    for variant in variants:
                        self.partial(form, id(expr), variant)

    def _hoistable(self, roots: Sequence[Expr], bound: frozenset[str]) -> list[Expr]:
        found: dict[int, Expr] = {}
        seen: set[int] = set()
        stack = list(reversed(roots))
        while stack:
            node = stack.pop()
            if id(node) in seen or isinstance(node, Const | DimValue | AxisVar):
                continue
            seen.add(id(node))
            if self.nest.depends(node) <= bound and not self.reads_stored(node):
                found[id(node)] = node
            else:
                stack.extend(reversed(self._always(node)))
        return list(found.values())

    def reads_stored(self, expr: Expr) -> bool:
        """True when an expression loads what this stage stores."""
        return id(expr) in self._changing

    def lane_mask(self, left: Value, first: int, lanes: int) -> Value:
        """Lanes ``first + lane < left``."""
        narrow = I32.with_lanes(lanes)
        most = self.b.select(self.b.icmp("slt", left, index(1 << 20)), left, index(1 << 20))
        count = self.b.splat(self.b.trunc(self.b.sub(most, index(first)), I32), lanes)
        return self.b.icmp("slt", self.b.iota(narrow), count)


def _reading(buffers: set[str], stage: Stage) -> set[int]:
    """Ids of the stage's expressions that load from some buffers."""
    found: set[int] = set()
    for node in walk(*stage.roots):
        own = isinstance(node, Load) and node.buffer in buffers
        if own or any(id(child) in found for child in node.children):
            found.add(id(node))
    return found


def _is_safe(expr: Expr) -> bool:
    """True when evaluating it without need costs little and touches nothing."""
    nodes = walk(expr)
    return len(nodes) <= 24 and not any(
        isinstance(node, Load | Reduce)
        or (isinstance(node, Call) and node.op in ("checked_index", "pow", "select"))
        for node in nodes
    )
