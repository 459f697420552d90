"""SARIF 2.1.0, for code scanning: a result for each check that did not pass, a rule for each code among them.

What is waived is a result as well, suppressed with the reason of its waiver.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from gradcheck_cli import __version__
from gradcheck_cli.explanations import PAGES
from gradcheck_cli.record import Check, Report, Suspect, strict
from gradcheck_cli.report import places
from gradcheck_cli.report.concise import outcome, subject
from gradcheck_cli.report.health import gate_text
from gradcheck_cli.report.text import Style, clean, name

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_LEVELS = {"fail": "error", "error": "error", "limit": "error", "inconclusive": "warning", "unsupported": "warning"}
_STOPPED = (2, 4, 70, 130)  # exit codes of runs that could not do all of what they were asked for
_ROOT = "%SRCROOT%"
_FIGURES = (
    "x", "y", "mode", "method", "seed", "entries", "max_abs_err", "max_rel_err", "needed", "bundle", "reproduce",
)  # fmt: skip


class Found(NamedTuple):
    """Something to be told of a check: under which rule, how bad, in which words."""

    check: Check
    rule: str
    level: str
    text: str


def document(report: Report, style: Style) -> str:
    """The log of a whole run."""
    found = [each for check in report.checks for each in _found(check)]
    rules = list(dict.fromkeys(each.rule for each in found))
    run = {
        "tool": {"driver": _driver(rules)},
        "invocations": [{"executionSuccessful": report.exit_code not in _STOPPED, "exitCode": report.exit_code}],
        "originalUriBaseIds": {_ROOT: {"description": {"text": "The folder in which gradcheck ran."}}},
        "columnKind": "unicodeCodePoints",
        "results": [_result(each, rules.index(each.rule)) for each in found],
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2, allow_nan=False) + "\n"


def _found(check: Check) -> Iterator[Found]:
    """What is wrong with a check, and with the health of its gradient where the run asked for that."""
    status = (check.waiver or {}).get("status", "fail") if check.status == "waived" else check.status
    if status != "pass":
        text = "\n".join([f"{subject(check)}: {outcome(check)}", *map(name, check.notes)])
        yield Found(check, check.code or "unknown", _LEVELS.get(status, "error"), text)
    if check.gates:
        text = f"{subject(check)}: {gate_text(check)}"
        yield from (Found(check, f"health/{name(word)}", "error", text) for word in check.gates)


def _driver(rules: Sequence[str]) -> dict[str, Any]:
    return {"name": "gradcheck", "semanticVersion": __version__, "rules": [_rule(rule) for rule in rules]}


def _rule(rule: str) -> dict[str, Any]:
    """A rule as `gradcheck explain` has it."""
    if rule not in PAGES:
        title = f"the gradient's health: {rule.partition('/')[2]}" if "/" in rule else rule
        return {"id": rule, "shortDescription": {"text": title}}
    page = PAGES[rule]
    return {
        "id": rule,
        "name": "".join(word.capitalize() for word in re.findall(r"[a-z]+", page.title)),
        "shortDescription": {"text": page.title},
        "fullDescription": {"text": page.meaning},
        "help": {"text": f"Why it happens: {page.causes}\n\nWhat to do: {page.remedy}"},
    }


def _result(found: Found, index: int) -> dict[str, Any]:
    check = found.check
    result = {
        "ruleId": found.rule,
        "ruleIndex": index,
        "level": found.level,
        "message": {"text": clean(found.text)},
        "locations": [_location(check)],
        "partialFingerprints": {"gradcheck/v1": places.fingerprint(check, found.rule)},
        "properties": {key: strict(value) for key in _FIGURES if (value := getattr(check, key))},
    }
    return {**result, "suppressions": [_suppression(check)]} if check.status == "waived" else result


def _location(check: Check) -> dict[str, Any]:
    """The model, and the node in it that is at fault."""
    uri = places.uri(check)
    artifact = {"uri": uri} if places.is_url(uri) else {"uri": uri, "uriBaseId": _ROOT}
    place = {"physicalLocation": {"artifactLocation": artifact, "region": {"startLine": 1}}}
    return place if check.suspect is None else {**place, "logicalLocations": [_node(check.suspect)]}


def _node(suspect: Suspect) -> dict[str, Any]:
    label = suspect.name or ", ".join(suspect.outputs)
    full = f"node {suspect.node} {suspect.op} {label!r}" + (f" in the {suspect.inside}" if suspect.inside else "")
    return {"name": clean(label), "fullyQualifiedName": clean(full), "kind": "node"}


def _suppression(check: Check) -> dict[str, Any]:
    reason = str((check.waiver or {}).get("reason") or "")
    found = {"kind": "external", "status": "accepted"}
    return {**found, "justification": clean(reason)} if reason else found
