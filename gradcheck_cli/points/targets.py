"""Targets of a check: names that a user gives, resolved against the graph, and those chosen where nobody gave any.

Constants have roles: weights, which are trained, and others: statistics, quantization, constants of the algorithm.
Files keep all of them alike, as initializers or Constant nodes.  The first of five rules that holds decides.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Any

from msgspec import Struct

from gradcheck_cli.autodiff.custom import with_installed
from gradcheck_cli.autodiff.reach import Flow, Selecting, selecting
from gradcheck_cli.errors import UsageError, counted, did_you_mean, named, quoted, shown
from gradcheck_cli.graph import Array, Graph, Node, TensorType, is_inexact
from gradcheck_cli.op import CONSTANT, DTYPES, QUANTIZATION, STATISTIC, WEIGHT, Op, Ops, operator_of
from gradcheck_cli.ops import OPS

_GLOB = {"*": ".*", "?": "."}  # as a regular expression has them


def require(graph: Graph, names: Iterable[str], uri: str) -> None:
    """UsageError for a name that is no tensor of the graph, with the nearest one and what there is."""
    for name in names:
        if name not in graph.tensors:
            hint = did_you_mean(name, graph.tensors)
            raise UsageError(f"{uri} has no tensor {name!r}.{hint}\nTensors to differentiate by: {_candidates(graph)}")


def choose_x(
    graph: Graph,
    ys: Sequence[str],
    *,
    x: Sequence[str] | None = None,
    params: bool = False,
    param: Sequence[str] = (),
    ops: Ops = OPS,
) -> tuple[str, ...]:
    """The tensors `x`, else the float inputs that some y depends on; with `params`, or without inputs, the weights too.

    An input that has a default value is a parameter.  One that only selects is left out where another has a gradient.
    `param` are patterns of further constants, see `matched_params`.
    """
    inputs = x or _usual_inputs(graph, ys, ops)
    if inputs and not params and not param:  # parameters are not looked at, which would read all of a large file
        return tuple(inputs)
    trained = weights(graph, ys, x or (), ops) if params or not param else ()
    return tuple(dict.fromkeys([*inputs, *matched_params(graph, ys, param, trained, ops)]))


def matched_params(
    graph: Graph, ys: Sequence[str], patterns: Sequence[str], trained: Sequence[str], ops: Ops,
    option: str = "--param ", never: Collection[str] = (),
) -> tuple[str, ...]:  # fmt: skip
    """Constants by name or glob beside those in `trained`; a pattern that begins with ! leaves out.

    If all patterns leave out, they leave out of the weights.  A pattern stands for constants in `never` where it fits
    no others.  UsageError for a pattern that fits nothing.
    """
    known = differentiable_constants(graph, ys)
    wanted = [each for each in patterns if not each.startswith("!")]
    found = dict.fromkeys(trained if wanted or trained or not patterns else weights(graph, ys, ops=ops))
    for pattern in wanted:
        found.update(dict.fromkeys(without(fitting(known, pattern, option), never)))
    for pattern in patterns:
        if pattern.startswith("!"):
            for name in fitting(known, pattern[1:], f"{option}!"):
                found.pop(name, None)
    return tuple(found)


def differentiable_constants(graph: Graph, ys: Sequence[str]) -> list[str]:
    """Constants of a float type on which some y depends."""
    needed = graph.needed_for(ys)
    return [n for n, v in graph.constants.items() if is_inexact(v.dtype) and v.size and n in needed]


def fitting(known: Sequence[str], pattern: str, option: str) -> list[str]:
    """The names that fit a pattern: that name itself, else a glob of * and ?; UsageError for none."""
    if pattern in known:
        return [pattern]
    form = globbed(pattern)
    found = [name for name in known if form.fullmatch(name)]
    if not found:
        bare = pattern.replace("*", "").replace("?", "")
        import difflib  # seldom needed

        near = difflib.get_close_matches(bare, known, n=3, cutoff=0.3) or list(known[:3])
        hint = f" The nearest are {', '.join(map(shown, near))}." if near else ""
        by = "" if option.lstrip("-").startswith("y") else " by"
        raise UsageError(f"{option}{shown(pattern)} fits no tensor that can be differentiated{by}.{hint}")
    return found


def is_glob(text: str) -> bool:
    """True for a text with * or ?."""
    return not _GLOB.keys().isdisjoint(text)


def globbed(text: str, flags: re.RegexFlag = re.NOFLAG) -> re.Pattern[str]:
    """The expression that fits all of a name as a glob of * and ? does."""
    return re.compile("".join(_GLOB.get(c) or re.escape(c) for c in text), re.DOTALL | flags)


def without(names: Sequence[str], never: Collection[str]) -> list[str]:
    """The names that are not in `never`; all of them if all are."""
    return [n for n in names if n not in never] or [*names]


def expanded(graph: Graph, names: Iterable[str], option: str) -> tuple[str, ...]:
    """Names of tensors; a name with * or ? that is no tensor's stands for the float tensors that fit it."""
    tensors, found = set(graph.tensors), dict[str, None]()
    for name in names:
        parts = [] if name in tensors else re.split(r"\s*[,;]\s*|\s+", name.strip())
        if len(parts) > 1 and tensors.issuperset(parts):
            several = " ".join(f"{option} {shown(part)}" for part in parts)
            raise UsageError(f"{option} takes one name at a time, not {shown(name)!r}. Write {several}")
        if name in tensors or not is_glob(name):
            found.setdefault(name)
            continue
        whole = integers(graph)
        floats = [
            n for n in graph.tensors if n not in whole and is_tensor(graph, n) and is_float(graph, n, unknown=True)
        ]
        found.update(dict.fromkeys(fitting(floats, name, f"{option} ")))
    return tuple(found)


def globs_said(graph: Graph, ys: Sequence[str], typed: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yields, for each glob under `x`, `y` and `param`, a sentence that names the tensors it stands for."""
    constants = differentiable_constants(graph, ys)
    for option, patterns in typed.items():
        for pattern in patterns:
            mark, bare = ("!", pattern[1:]) if option == "param" and pattern.startswith("!") else ("", pattern)
            if bare not in graph.tensors and is_glob(bare):
                fits = expanded(graph, [bare], "") if option != "param" else fitting(constants, bare, "")
                yield f"--{option} {mark}{bare} is {', '.join(fits)}"


def integers(graph: Graph) -> set[str]:
    """Tensors that are seen to hold integers or truth values, whether or not the file says so."""
    known, ops = (*graph.inputs, *graph.constants), with_installed(OPS, graph)
    found = {n for n in known if not is_float(graph, n, unknown=True)}
    for node in graph.nodes:
        op = operator_of(ops, node)
        follows = op.like is not None and op.like < len(node.inputs) and node.inputs[op.like] in found
        whole = follows or to_integers(node, ops)
        found.update(n for i, n in enumerate(node.outputs) if n and (whole or i in op.integral))
    return {n for n in found if graph.types.get(n, TensorType()).dtype is None or not is_float(graph, n)}


def _usual_inputs(graph: Graph, ys: Sequence[str], ops: Ops) -> list[str]:
    """The float inputs that some y depends on, but for those that only select."""
    needed, left_out = graph.needed_for(ys), selecting_inputs(graph, ys, ops)
    return [n for n in graph.free_inputs if n in needed and is_float(graph, n) and n not in left_out]


def selecting_inputs(graph: Graph, ys: Sequence[str], ops: Ops) -> set[str]:
    """The float inputs that only select what is computed, where another float input has a gradient."""
    needed = graph.needed_for(ys)
    inputs = [n for n in graph.free_inputs if n in needed and is_float(graph, n)]
    if len(inputs) < 2:  # weights are looked at only where there is something to leave out
        return set()
    constants = (n for n in differentiable_constants(graph, ys) if graph.constants[n].size > 1)
    return selecting(Flow(graph, with_installed(ops, graph)), inputs, [*graph.free_inputs, *constants], ys)


def choose_y(graph: Graph) -> tuple[str, ...]:
    """The outputs that are float tensors, or of a dtype that the file does not say."""
    return tuple(n for n in graph.outputs if is_tensor(graph, n) and is_float(graph, n, unknown=True))


def is_tensor(graph: Graph, name: str) -> bool:
    """True if a value is declared to be a tensor, or not declared."""
    return graph.types.get(name, TensorType()).kind == "tensor"


def is_float(graph: Graph, name: str, *, unknown: bool = False) -> bool:
    """True if a tensor holds floating-point or complex numbers; `unknown` where nothing is declared."""
    if name in graph.constants:
        return is_inexact(graph.constants[name].dtype)
    declared = graph.types.get(name)
    if declared is None or declared.dtype is None:
        return unknown or name in graph.inputs
    return declared.kind == "tensor" and is_inexact(declared.dtype)


def reaching(graph: Graph, xs: Sequence[str], fed: Collection[str]) -> dict[str, int]:
    """For each tensor the xs that it depends on, or is, as bits in their order; tensors that are fed depend on nothing."""
    found = {x: 1 << i for i, x in enumerate(xs)}
    for node in graph.nodes:
        if bits := reduce(or_, (found.get(name, 0) for name in node.reads), 0):
            found.update((name, found.get(name, 0) | bits) for name in node.outputs if name and name not in fed)
    return found


def check_paths(graph: Graph, xs: Sequence[str], ys: Sequence[str], fed: Collection[str] = ()) -> None:
    """UsageError for an x that reaches no y: cut off by a tensor that is fed, swapped with y, or not connected."""
    for x in xs:
        reached = graph.reached_from([x])
        if graph.reached_from([x], fed).intersection(ys) or not ys:
            continue
        y = next((y for y in ys if y in reached), ys[0])
        if y in reached:
            between = [name for name in fed if name != x and name in reached and name in graph.needed_for([y])]
            cut = f"{', '.join(map(repr, between))} {'is' if len(between) == 1 else 'are'} fed"
            raise UsageError(f"{y!r} does not depend on {x!r} while {cut}.")
        if x in graph.reached_from([y]):
            swapped = f"{y!r} does not depend on {x!r}, but {x!r} depends on {y!r}."
            raise UsageError(f"{swapped} Are --x and --y swapped?")
        outputs = [n for n in graph.outputs if n in reached]
        ends = f"only: {', '.join(map(shown, outputs))}." if outputs else "no output."
        raise UsageError(f"{y!r} does not depend on {x!r}. {shown(x)} reaches {ends}")


def refuse_constants(graph: Graph, ys: Iterable[str]) -> None:
    """UsageError for a y that is a constant, where nothing is left to differentiate by."""
    for y in ys:
        if y in graph.constants:
            end = next(iter(n for n in choose_y(graph) if y in graph.needed_for([n])), "")
            by = f" To differentiate by it: --x {quoted(y)}{f' --y {quoted(end)}' if end else ''}"
            raise UsageError(f"--y {shown(y)} is a constant of the model, which depends on nothing.{by}")


def first_float_after(graph: Graph, name: str, dtypes: Mapping[str, str]) -> str | None:
    """The first float tensor computed from an integer one: what to differentiate by instead."""
    reached = graph.reached_from([name])
    for node in graph.nodes:
        for output in node.outputs:
            if output in reached and dtypes.get(output, "").startswith(("float", "bfloat", "complex")):
                return output
    return None


def _candidates(graph: Graph) -> str:
    names = [*graph.inputs, *(n for n in weights(graph, graph.outputs) if n not in graph.inputs)]
    floats = [n for n in names if is_float(graph, n)]
    first = ", ".join(f"{shown(n)} {_type(graph, n)}" for n in floats[:8])
    return first + (f", ... {len(floats) - 8} more" if len(floats) > 8 else "") or "none"


def _type(graph: Graph, name: str) -> TensorType:
    if name in graph.types:
        return graph.types[name]
    value = graph.constants[name]
    return TensorType(value.dtype, value.shape)


_IDENTIFIER = re.compile(r"[A-Za-z_]\w*(\.\w+)*")  # as Python calls the parameters of modules
# names that exporters give to what has none, and to constants that they need themselves
_EXPORTED = re.compile(r"constant|const(_|\d|$)|onnx::|val_|.*__\d+(:0)?$", re.IGNORECASE)
_FILLED_IN = re.compile(r"constant|val_|.*_val_\d+$", re.IGNORECASE)
_LITERAL = re.compile(  # numbers of the code, in PyTorch's older exporter and as operands of TensorFlow's functions
    r"(.*[/._])?/(.*/)?Constant(_\d+)?_output_0|(.*/)?Const(_\d+)?:0|.*/([abetxy]|padding_value)(:0)?"
)
_PARAMETER = re.compile(  # names that modules give to what is trained
    r"(^|_)(weights?|bias(es)?|kernel|gamma|beta|scale|alpha|lambda|tau|temperature|embed(ding)?s?|tokens?|table|param"
    r"(eter)?s?)(_|\d|$)|ReadVariableOp"
)
_LARGE_NEGATIVE = -1e3  # what an attention mask adds
_AT_ONCE = 1 << 16  # entries
_COPY = ("", "Identity")


class ConstantRole(Struct, frozen=True):
    """The role of a constant, the number of the rule that gave it, and that rule in words."""

    role: str
    rule: int
    why: str


def constant_roles(
    graph: Graph, ys: Collection[str], named: Collection[str] = (), ops: Ops = OPS
) -> dict[str, ConstantRole]:
    """The roles of all constants of a floating-point type; `named` are those that a user calls by their names."""
    floats = [n for n, v in graph.constants.items() if is_inexact(v.dtype) and v.size]
    ops = with_installed(ops, graph)
    uses, needed = readers_of(graph, floats, ops), graph.needed_for(ys)
    several = [n for n in floats if graph.constants[n].size > 1]
    rule = Selecting(Flow(graph, ops), graph.free_inputs, several, ys)
    return {n: _role(graph, n, uses.get(n, ()), needed, rule, named) for n in floats}


def not_chosen(graph: Graph, ys: Collection[str], ops: Ops) -> str:
    """A sentence on constants that could be differentiated by, for a model that has neither inputs nor weights to."""
    found = differentiable_constants(graph, [*ys])
    if not found:
        return ""
    roles = constant_roles(graph, ys, ops=ops)
    first = max(found, key=lambda n: roles[n].rule)  # what was judged by its values is what one would look for
    more = f" and {counted(len(found) - 1, 'more constant')}" if found[1:] else ""
    told = f"{shown(first)} {_type(graph, first)} ({roles[first].why}){more}"
    return f"Not taken for a weight: {told}. Check it: --param {quoted(first)}"


def weights(graph: Graph, ys: Collection[str], named: Collection[str] = (), ops: Ops = OPS) -> tuple[str, ...]:
    """The constants that are trained, wherever the file keeps them, as far as some y depends on them."""
    return tuple(n for n, found in constant_roles(graph, ys, named, ops).items() if found.role == WEIGHT)


def passed_over(graph: Graph, roles: Mapping[str, ConstantRole]) -> list[str]:
    """The constants that are no weights by their values, and that a module calls as it may call a parameter.

    Exporters that declare their parameters leave no doubt.
    """
    if any(graph.modules.values()):
        return []
    return [
        n for n, found in roles.items()
        if found.role != WEIGHT and found.rule in (4, 5) and n not in graph.inline and _IDENTIFIER.fullmatch(n)
        and (not is_made_up(n) or (graph.constants[n].size > 1 and is_flat(graph.constants[n])))
        and n not in graph.folded
    ]  # fmt: skip


def omitted(graph: Graph, ys: Collection[str], ops: Ops) -> tuple[str, ...]:
    """A note on constants that were passed over, for a check by the weights."""
    found = passed_over(graph, constant_roles(graph, ys, ops=ops))
    told = f"not taken for parameters: {named(found)} (one entry, or all values are equal); --param NAME adds one"
    return (told,) if found else ()


def is_flat(value: Array) -> bool:
    """True for real numbers that are all equal."""
    return bool(value.dtype.kind in "fV" and value.size and _same(value, value.flat[0]).all())


def said_of_merged(graph: Graph, names: Iterable[str], ops: Ops) -> Iterator[str]:
    """Sentences on weights, those in `names` or none, that an exporter may have made of several equal tensors.

    Exporters keep equal tensors once: all biases of a model that was never trained, say, which begin with zeros.
    """
    weighed = [n for n in names if n in graph.constants]
    read = _readers(graph, ops) if weighed else {}
    several = [n for n in weighed if len(read.get(n, ())) > 1]
    left = [n for n, roles in read.items() if n not in several and WEIGHT in roles and _is_kept(graph, n, roles)]
    for found, what in ((several, "one weight here"), (left, "kept here, not trained")):
        equal = [n for n in found if _kinds(graph.constants[n])[0]]
        if equal:
            more = f" and {len(equal) - 1} more" if equal[1:] else ""
            told = f"{shown(equal[0])} (all its values are equal, and {len(read[equal[0]])} nodes read it){more}"
            yield (f"{told}: {what}. If the exporter made it of several equal ones, export without optimizing, "
                   "in PyTorch by torch.onnx.export(..., dynamo=True, optimize=False)")  # fmt: skip


def _is_kept(graph: Graph, name: str, roles: Sequence[str]) -> bool:
    """True for what is a statistic too or has no role elsewhere, or a buffer that several nodes read."""
    return bool({STATISTIC, ""}.intersection(roles)) or (graph.modules.get(name) is False and len(roles) > 1)


def _readers(graph: Graph, ops: Ops) -> dict[str, list[str]]:
    """The role, or none, of each operand that is a constant, by constant; copies of it count as it."""
    read: dict[str, list[str]] = {}
    constant = copied(graph)
    for node in graph.all_nodes:
        for index, name in enumerate(node.inputs):
            if name in constant and node.key != _COPY:
                read.setdefault(constant[name], []).append(_role_in(operator_of(ops, node), index))
    return read


def copied(graph: Graph) -> dict[str, str]:
    """The constants that tensors are: each is itself, and what Identity gives is what it takes."""
    found = {n: n for n in graph.constants}
    for node in graph.all_nodes:
        if node.key == _COPY and node.inputs[0] in found:
            found[node.outputs[0]] = found[node.inputs[0]]
    return found


def _role(
    graph: Graph,
    name: str,
    uses: Sequence[tuple[Op, int]],
    needed: Collection[str],
    rule: Selecting,
    named: Collection[str],
) -> ConstantRole:
    if name in named or name in (graph.trained or ()):
        return ConstantRole(WEIGHT, 1, "it was named" if name in named else "the file declares it so")
    of_operand, of_module = _by_operand(uses), graph.modules.get(name)
    if of_operand is None or of_operand.role == WEIGHT:
        if graph.trained is not None and not _stated(uses):
            return ConstantRole(CONSTANT, 1, "the file declares it so")
        if of_module is False:
            return ConstantRole(CONSTANT, 1, "the file declares it a buffer")
        if _LITERAL.fullmatch(name):
            return ConstantRole(CONSTANT, 1, "called as exporters call numbers of the code")
    if of_module and name in needed and not rule.only_selects(name):
        return ConstantRole(WEIGHT, 1, "the file declares it a parameter")
    if of_operand is not None:
        return _filled_in(graph, name, of_operand) or of_operand
    if name not in needed:
        return ConstantRole(CONSTANT, 3, "no y depends on it")
    if rule.only_selects(name):
        return ConstantRole(CONSTANT, 3, "it only selects")
    value = graph.constants[name]
    module = name not in graph.inline and is_of_module(name)
    if value.size == 1:
        why = "one entry, called as a module's" if module else "one entry, not called as a module's"
        return ConstantRole(WEIGHT if module else CONSTANT, 4, why)
    equal, masking = _kinds(value)
    if not equal and not masking:
        return ConstantRole(WEIGHT, 5, "several values, on a path to y")
    if equal and module and _PARAMETER.search(_last(name)):
        return ConstantRole(WEIGHT, 5, "all values are equal, called as a module's weight")
    return ConstantRole(CONSTANT, 5, "all values are equal, or a mask's")


def _by_operand(uses: Iterable[tuple[Op, int]]) -> ConstantRole | None:
    """The role of an operand of known operators; of several roles a weight counts last."""
    found: dict[str, str] = {}
    for op, index in uses:
        found.setdefault(_role_in(op, index), f"operand {index} of {op.name}")
    first = next((r for r in (STATISTIC, QUANTIZATION, WEIGHT, CONSTANT) if r in found), None)
    return None if first is None else ConstantRole(first, 2, found[first])


def _stated(uses: Iterable[tuple[Op, int]]) -> bool:
    """True if an operator from outside, which a spec defines by its `facts:`, says that a constant is a weight."""
    return any(op.key not in OPS and _role_in(op, index) == WEIGHT for op, index in uses)


def _role_in(op: Op, operand: int) -> str:
    """The role of a constant as an operand of an operator; "" where the operand has none."""
    return next((role for role, operands in op.roles.items() if operand in operands), "")


def _filled_in(graph: Graph, name: str, found: ConstantRole) -> ConstantRole | None:
    """The role of what an exporter gives an operator that needs a weight where the module has none, else None."""
    value, made_up = graph.constants[name], name in graph.inline or _FILLED_IN.match(_last(name)) is not None
    if found.role == WEIGHT and made_up and all(_kinds(value)) and value.reshape(-1)[0] in (0, 1):
        return ConstantRole(
            CONSTANT, 2, f"{found.why}, filled in by an exporter: each is {value.reshape(-1)[0] == 1:d}"
        )
    return None


def readers_of(graph: Graph, names: Iterable[str], ops: Ops) -> dict[str, list[tuple[Op, int]]]:
    """Operators that read constants, and as which operand, through casts and changes of layout."""
    behind: dict[str, set[str]] = {n: {n} for n in names}
    found: dict[str, list[tuple[Op, int]]] = {}
    for node in graph.all_nodes:
        op = operator_of(ops, node)
        for index, read in enumerate(node.inputs):
            for name in behind.get(read, ()):
                found.setdefault(name, []).append((op, index))
                if op.lays_out(index):
                    for output in node.outputs:
                        behind.setdefault(output, set()).add(name)
    return found


def to_integers(node: Node, ops: Ops) -> bool:
    """True if a node makes integers or truth values of numbers."""
    if 0 in operator_of(ops, node).integral:
        return True
    dtype = DTYPES.get(node.attrs.get("to", 0)) if node.op == "Cast" else None
    return dtype is not None and not is_inexact(dtype)


def is_of_module(name: str) -> bool:
    """True for a name such as encoder.scale: parts, of which the last is none that an exporter makes up."""
    last = _last(name)
    return last not in ("", name) and _EXPORTED.match(last) is None


def is_made_up(name: str) -> bool:
    """True for a name that an exporter gives to what has none."""
    return _EXPORTED.match(_last(name)) is not None


def _last(name: str) -> str:
    """The last of the parts of a name."""
    return re.split(r"[./]", name)[-1]


def _same(values: Array, value: Any) -> Array:
    """True for each value that is that one, which may be NaN."""
    return (values == value) | ((values != values) & (value != value))


def _kinds(value: Array) -> tuple[bool, bool]:
    """Tells if all values are equal, and if all are those of a mask: 0, 1 and large negative ones."""
    flat, equal, masking = value.reshape(-1), True, True
    for start in range(0, flat.size, _AT_ONCE):
        part = flat[start : start + _AT_ONCE]
        equal = equal and bool(_same(part, flat[0]).all())
        masking = masking and bool(((part == 0) | (part == 1) | (part.real <= _LARGE_NEGATIVE)).all())
        if not equal and not masking:
            break
    return equal, masking
