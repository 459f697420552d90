"""SARIF 2.1.0, for code scanning: a result for each check that did not pass, a rule for each code among them.

What is waived is a result as well, suppressed with the reason of its waiver.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from textwrap import indent
from typing import Any

from gradcheck_cli.errors import DOCUMENTATION, VERSION, clean
from gradcheck_cli.report import text as places
from gradcheck_cli.report.concise import CODE, LEVELS, forward_reason, outcome, subject
from gradcheck_cli.report.explanations import PAGES
from gradcheck_cli.report.health import gate_text, health_text
from gradcheck_cli.report.text import Style, name
from gradcheck_cli.results.record import Check, Report, Suspect, strict

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_STOPPED = (2, 4, 70, 130)  # exit codes of runs that could not do all of what they were asked for
_ROOT, _HEALTH, _FORWARD = "%SRCROOT%", "health/", f"forward/{CODE}"
_FIGURES = (
    "x", "y", "mode", "method", "seed", "entries", "max_abs_err", "max_rel_err", "needed", "bundle", "reproduce",
    "copy_of",
)  # fmt: skip


def document(report: Report, style: Style) -> Iterator[str]:
    """The log of a whole run, result by result."""
    found = report.those(_rules)
    rules = [*dict.fromkeys(rule for check in report.outcomes for rule in _rules(check))]
    run = {
        "tool": {"driver": {"name": "gradcheck", "semanticVersion": VERSION, "rules": [*map(_rule, rules)]}},
        "invocations": [{"executionSuccessful": report.exit_code not in _STOPPED, "exitCode": report.exit_code}],
        "originalUriBaseIds": {_ROOT: {"description": {"text": "The folder in which gradcheck ran."}}},
        "columnKind": "unicodeCodePoints",
        "results": [],
    }
    start, none, end = _text_of({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}).rpartition("[]")
    yield start + ("[" if rules else none)
    results = (_result(check, rule, rules.index(rule)) for check in found for rule in _rules(check))
    yield from (f"{',' * bool(n)}\n{indent(_text_of(result), ' ' * 8)}" for n, result in enumerate(results))
    yield f"{chr(10)}      ]{end}\n" if rules else f"{end}\n"


def _text_of(value: Any) -> str:
    return json.dumps(value, indent=2, allow_nan=False)


def _rules(check: Check) -> list[str]:
    """The rules that a check breaks: its code, the health that the run asked for, a forward run that differs."""
    fine = check.gradient_passes and check.status != "waived"
    found = [check.code or "unknown"] * (_status(check) != "pass" and not fine)
    found += [f"{_HEALTH}{name(word)}" for word in (*check.at_health, *_known_health(check))]
    return found + [_FORWARD] * (check.forward_differs or _forward_waived(check))


def _known_health(check: Check) -> tuple[str, ...]:
    """The gates of its health that it does not stop at, as it did so in the baseline."""
    return (check.waiver or {}).get("gates", ())


def _forward_waived(check: Check) -> bool:
    """True if the forward run differs as expected."""
    waiver = check.waiver or {}
    return bool(waiver.get("forward")) and not waiver.get("ended") and not check.forward_differs


def _status(check: Check) -> str:
    """The status of a check, or the one that is waived."""
    return str((check.waiver or {}).get("status", "fail")) if check.status == "waived" else check.status


def _said(check: Check, rule: str) -> tuple[str, str]:
    """The level of a result, and its text."""
    if rule.startswith(_HEALTH):
        return "error", f"{subject(check)}: {gate_text(check) or health_text(_known_health(check))}"
    if rule == _FORWARD:
        return "error", f"{subject(check)}: {forward_reason(check)}"
    told = [f"{subject(check)}: {outcome(check)}", *map(name, check.notes)]
    return LEVELS.get(_status(check), "error"), "\n".join(told)


def _rule(rule: str) -> dict[str, Any]:
    """A rule as `gradcheck explain` has it."""
    if rule == _FORWARD:
        return {**_rule(CODE), "id": rule}
    if rule not in PAGES:
        title = f"the gradient's health: {rule.partition('/')[2]}" if "/" in rule else rule
        more = {"helpUri": f"{DOCUMENTATION}guides/health/"} if rule.startswith(_HEALTH) else {}
        return {"id": rule, "shortDescription": {"text": title}, **more}
    page = PAGES[rule]
    return {
        "id": rule,
        "name": "".join(word.capitalize() for word in re.findall(r"[a-z]+", page.title)),
        "shortDescription": {"text": page.title},
        "fullDescription": {"text": page.meaning},
        "helpUri": places.page_of(rule),
        "help": {"text": f"Why it happens: {page.causes}\n\nWhat to do: {page.remedy}"},
    }


def _result(check: Check, rule: str, index: int) -> dict[str, Any]:
    level, text = _said(check, rule)
    result = {
        "ruleId": rule,
        "ruleIndex": index,
        "level": level,
        "message": {"text": clean(text)},
        "locations": [_location(check, _node_of(check, rule))],
        "partialFingerprints": {"gradcheck/v1": places.fingerprint(check, rule)},
        "properties": {key: strict(value) for key in _FIGURES if (value := getattr(check, key))},
    }
    accepted = _forward_waived(check) if rule == _FORWARD else check.status == "waived"
    return {**result, "suppressions": [_suppression(check)]} if accepted else result


def _node_of(check: Check, rule: str) -> Suspect | None:
    """The node that a finding is about, where that is known."""
    if rule != _FORWARD:
        return check.suspect
    first = check.forward.get("first_node")
    return None if not first else Suspect(first["node"], first["op"], first["name"], tuple(first["outputs"]))


def _location(check: Check, at: Suspect | None) -> dict[str, Any]:
    """The check in its spec, or the model, and the node in it that is at fault."""
    path, line = places.place(check)
    uri = places.uri(path)
    artifact = {"uri": uri} if places.is_url(uri) else {"uri": uri, "uriBaseId": _ROOT}
    place = {"physicalLocation": {"artifactLocation": artifact, "region": {"startLine": line}}}
    return place if at is None else {**place, "logicalLocations": [_node(at)]}


def _node(suspect: Suspect) -> dict[str, Any]:
    label = suspect.name or ", ".join(suspect.outputs)
    full = f"node {suspect.node} {suspect.op} {label!r}" + (f" in the {suspect.inside}" if suspect.inside else "")
    return {"name": clean(label), "fullyQualifiedName": clean(full), "kind": "node"}


def _suppression(check: Check) -> dict[str, Any]:
    reason = str((check.waiver or {}).get("reason") or "")
    found = {"kind": "external", "status": "accepted"}
    return {**found, "justification": clean(reason)} if reason else found
