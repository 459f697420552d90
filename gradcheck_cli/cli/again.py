"""A saved failure run again: the settings and values of a bundle, and what was typed on top of them."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import rich_click as click
from msgspec import structs

from gradcheck_cli.cli import note
from gradcheck_cli.cli.baseline import Baseline
from gradcheck_cli.cli.checker import Checker
from gradcheck_cli.cli.resolve import resolve
from gradcheck_cli.cli.run import Run
from gradcheck_cli.cli.tasks import Task
from gradcheck_cli.errors import counted, quoted
from gradcheck_cli.formats.source import Source
from gradcheck_cli.results.record import Check
from gradcheck_cli.settings import OPTIONS, Settings
from gradcheck_cli.zoo.bundle import Bundle, load

_SAME = ("status", "code", "entries", "max_abs_err", "max_rel_err")


def run_again(path: str, given: Mapping[str, Any], ctx: click.Context) -> int:
    """Runs the check of a bundle and gives its exit code."""
    bundle = load(path)
    if bundle.state == "running":
        note("its process ended before this check did")
    for name in bundle.bounded.keys() - given.keys():
        note(bundle.bounded[name])
    for change in bundle.changes():
        note(change)
    task = Task(bundle.check, bundle.subject.path, lambda: _source(bundle, given))
    options = {**given, "save_failures": "none"}
    again = Run([task], given, options, ctx, Baseline.of(given), partial(Repeater, bundle=bundle, path=path))
    code = again.run()
    if not _settings_typed(given) and again.records and bundle.records:
        note(_compared(bundle.records, [c.as_json() for c in again.records]))
    return code


class Repeater(Checker):
    """Checks what a bundle holds, with the settings that were saved."""

    bundle: Bundle = None  # type: ignore[assignment]  # fields with defaults stand before
    path: str = ""

    def _layers(self, task: Task) -> list[Mapping[str, Any]]:
        return [{"timeout": self.bundle.settings.timeout}, self._seeded(self.given)]

    def _settings(self, source: Source, layers: Sequence[Mapping[str, Any]]) -> Settings:
        """The saved settings; what was typed replaces them, and of an option by tensor adds to them."""
        saved, typed = self.bundle.settings, layers[-1]
        targets = {"x": saved.x, "y": saved.y, "params": saved.params, "param": saved.param, "test_data": "none"}
        resolved = resolve(source, [{n: v for n, v in targets.items() if v}, typed])
        saved = replace(saved, test_data=self.bundle.shipped)
        names = [*_settings_typed(self.given), *(["method", "delta"] if "delta" in typed else [])]
        names += ["points"] if "point" in typed else []
        if not _asks_for_other_values(typed):
            saved = replace(saved, dims={**saved.dims, **self.bundle.sizes})
        fields = [OPTIONS[name].field for name in names]
        pairs = ((field, getattr(saved, field), getattr(resolved, field)) for field in fields)
        over: Any = {f: {**was, **now} if isinstance(was, Mapping) else now for f, was, now in pairs}
        return replace(saved, **over)

    def _command(self, found: Check, task: Task, known: Container[str]) -> str:
        return f"gradcheck reproduce {quoted(self.path)}"


def _settings_typed(given: Mapping[str, Any]) -> list[str]:
    """Options that make it another check than the one that was saved."""
    return [name for name in given if OPTIONS[name].field]


def _source(bundle: Bundle, given: Mapping[str, Any]) -> Source:
    """The model, with the inputs that were drawn unless others are asked for."""
    source = bundle.source(allow_python=bool(given.get("allow_python")))
    return source if _asks_for_other_values(given) else structs.replace(source, values_at=bundle.drawn)


def _asks_for_other_values(given: Mapping[str, Any]) -> bool:
    return any(name in OPTIONS and OPTIONS[name].redraws for name in given)


def _compared(saved: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]) -> str:
    """A sentence that compares the records with those that were saved."""
    by_id = {str(record.get("id")): record for record in now}
    was = [record for record in saved if record.get("status") not in ("pass", "waived") or _differs(record)]
    for record in was:
        other = by_id.get(str(record.get("id")))
        if other is not None and _differs(record) and not _differs(other):
            return f"{record.get('id')}: its forward run differed when it was saved, and does not now"
        if other is None or other["status"] != record.get("status"):
            return f"{record.get('id')}: {record.get('status')} when it was saved, {other and other['status']} now"
    changed = [r for r in was if any(by_id[str(r.get("id"))][name] != r.get(name) for name in _SAME) or
               not _begins(by_id[str(r.get("id"))]["worst"], r.get("worst"))]  # fmt: skip
    if changed:
        return f"the same outcome as when it was saved, with other numbers in {counted(len(changed), 'check')}"
    return "the same as when it was saved, to the last bit"


def _begins(entries: Sequence[Any], saved: Any) -> bool:
    """True if the entries that were saved, which may be anything, are the first of these."""
    return isinstance(saved, list) and entries[: len(saved)] == saved


def _differs(record: Mapping[str, Any]) -> bool:
    """True if the forward run of a record is not what onnxruntime computes, or what ships with the model."""
    return isinstance(record.get("forward"), Mapping) and record["forward"].get("agrees") is False
