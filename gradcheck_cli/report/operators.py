"""Operators as `gradcheck ops` prints them: the list, and a page for each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from gradcheck_cli.ops.facts import FORWARD, GRADIENT, OperatorFacts
from gradcheck_cli.report.text import table, wrapped

_HEAD = ("operator", "forward", "gradient", "versions", "dtypes", "kinks")
_LEGEND = [
    ("kernel, rule", "code of its own for the result, and for the gradient"),
    ("composed", "computed by other operators; kinks and gradient are theirs"),
    ("zero", "the gradient is zero wherever it exists, as that of Round"),
    ("versions", "of its domain: the first and the newest that define it"),
    ("dtypes", "of the data; real: float, int and bool; any: complex too"),
    ("kinks", "where the slopes on two sides differ; parts: as its parts"),
]
_WIDTH = 79
_CLASSES = {"float": ("float", "bfloat"), "int": ("int", "uint"), "bool": ("bool",), "complex": ("complex",)}
_WORDS = {tuple(_CLASSES): "any", ("float", "int", "bool"): "real"}
_PARTS = "as the operators it is composed of"


def listing(found: Sequence[OperatorFacts], width: int = _WIDTH) -> str:
    """The known operators, a line each, by domain; then the others of ONNX."""
    shown = [f for f in found if f.known and not f.read_as]
    parts = []
    for domain in dict.fromkeys(f.domain for f in shown):
        rows = table([_HEAD, *(_row(f) for f in shown if f.domain == domain)], "<<<<<<", (), width)
        parts.append([domain, *rows] if domain else rows)
    legend = [line for word, told in _LEGEND for line in wrapped(told, width, f"  {word:14}", " " * 16)]
    parts.append([*wrapped(_summary(found), width, ""), *legend])
    renamed = ", ".join(f"{f.full_name} ({f.read_as})" for f in found if f.read_as)
    parts.append(["Read as something else:", *wrapped(renamed, width)])
    if unknown := ", ".join(f.full_name for f in found if not f.known):
        parts.append(["Not known, so that a check stops there:", *wrapped(unknown, width)])
    return "\n\n".join("\n".join(lines) for lines in parts) + "\n"


def page(facts: OperatorFacts, width: int = _WIDTH, known: str = "") -> str:
    """The page of one operator; `known` says how well its rule is known."""
    lines = [facts.full_name, *wrapped(facts.does, width)]
    for title, text in _facts(facts, known):
        lines += wrapped(text, width, f"  {title:14}", " " * 16)
    return "\n".join(lines) + "\n"


def _row(facts: OperatorFacts) -> tuple[str, ...]:
    kinks = "" if facts.kinks == "no" else facts.kinks
    dtypes = classes(facts.dtypes.get(facts.data, ()))
    span = "-".join(map(str, dict.fromkeys((*facts.versions[:1], *facts.versions[-1:]))))
    return facts.name, facts.forward, facts.gradient, span, dtypes, kinks


def classes(dtypes: Sequence[str]) -> str:
    """Dtypes in a word or two: float, float int, any."""
    words = [word for word, starts in _CLASSES.items() if any(dtype.startswith(starts) for dtype in dtypes)]
    return _WORDS.get(tuple(words), " ".join(words)) or " ".join(dtypes)


def _summary(found: Sequence[OperatorFacts]) -> str:
    of_onnx = [f for f in found if f.versions]
    others = Counter(f.domain or "others" for f in found if not f.versions)
    known = f"Known: ONNX {sum(f.known for f in of_onnx)} of {len(of_onnx)}"
    return ", ".join([known, *(f"{domain} {number}" for domain, number in others.items())])


def _facts(facts: OperatorFacts, known: str) -> Iterator[tuple[str, str]]:
    yield "forward", f"read as {facts.read_as}" if facts.read_as else FORWARD[facts.forward]
    if not facts.read_as:
        yield "gradient", ": ".join(filter(None, [GRADIENT[facts.gradient], facts.flows]))
        if known:
            yield "known", known
    if facts.known and not facts.read_as:
        yield "kinks", _PARTS if facts.kinks == "parts" else facts.kinks
        yield "complex step", _PARTS if facts.complex_step == "parts" else facts.complex_step
    if facts.versions:
        yield "versions", ", ".join(map(str, facts.versions))
    positions = {position: name for name, position in facts.constants.items()}
    for index, (name, dtypes) in enumerate(facts.dtypes.items()):
        fixed = ", a constant" if index in positions else ""
        yield f"input {index}", f"{name}{fixed}: {', '.join(dtypes)}"
    for name, value in facts.attributes.items():
        yield "attribute", f"{name} = {_shown(value)}"


def _shown(value: object) -> str:
    """A default as the standard writes it: ONNX's floats are float32."""
    if isinstance(value, float):
        return f"{value:.7g}"
    return repr(value) if not isinstance(value, str) or value == "" else value
