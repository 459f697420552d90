"""A report with a check of every outcome, most of them of real runs, as a folder and on one page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import html5lib
import pytest

from gradcheck_cli.report.html.site import folder, single
from gradcheck_cli.results.measures import Severed, Spot
from gradcheck_cli.results.record import Check, Entry, ModelInfo, Report
from tests.checking.small import between, check, model, scaled, with_rule

HTML = "{http://www.w3.org/1999/xhtml}"


@dataclass
class Page:
    """A parsed page: an error in its HTML is an error here."""

    text: str

    def __post_init__(self) -> None:
        self.tree = html5lib.HTMLParser(strict=True).parse(self.text)

    def all(self, tag: str, **attributes: str) -> list[Any]:
        found = self.tree.iter(f"{HTML}{tag}")
        return [
            e for e in found if all(value in e.get(name.rstrip("_"), "").split() for name, value in attributes.items())
        ]

    @property
    def said(self) -> str:
        """Its text, without markup."""
        return "".join(self.tree.itertext())


def said(element: Any) -> str:
    return " ".join("".join(element.itertext()).split())


def named(record: Check, label: str, **more: Any) -> Check:
    """A record under a name of its own."""
    info = replace(record.model, uri=f"models/{label}", operators=record.model.operators)
    return replace(record, check=label, model=info, reproduce=f"gradcheck 'models/{label}' --x x --y y", **more)


def failed(label: str, status: str, code: str, message: str, **more: Any) -> Check:
    """The record of a model that could not be checked."""
    return Check(label, label, status, code, ModelInfo(label), "", "", message=message, **more)


@pytest.fixture(scope="session")
def report() -> Report:
    passing = check(between("Tanh"))
    wrong, without_rule = with_rule("Tanh", scaled("Tanh", 2.0)), with_rule("Tanh", None)
    tie = check(model(("Relu", "x", "a"), ("ReduceSum", "a", "y", {"keepdims": 0})), [0.0, 0.0, 1.0, 2.0])
    return Report((
        named(passing, "right.onnx"),
        named(passing, "other/right.onnx"),
        named(check(between("Tanh"), ops=wrong, pictures="wrong"), "wrong.onnx"),
        named(check(between("Tanh", x=(5, 6)), ops=wrong, pictures="wrong", mode="directional"), "projected.onnx"),
        named(check(between("Tanh"), ops=wrong, pictures="none"), "waived.onnx", status="waived",
              waiver={"status": "fail", "reason": "ACME-412", "until": "2027-03-31"}),
        named(passing, "vanishing.onnx", gates=("vanishing",)),
        named(passing, "misread.onnx", gates=("forward",), forward={
            "compared_with": "onnxruntime 1.31.0", "agrees": False, "code": "GC404", "reason": "'y' is not what it says",
            "max_abs_err": 0.5, "max_rel_err": 0.1, "bound": 4e-6, "first_node": None, "refused": False}),
        named(tie, "tie.onnx", status="inconclusive", code="GC301",
              worst=(Entry((0,), (), 0, 1.0, 0.5, 1e-9, "kink", "inconclusive", slopes=(0.0, 1.0)),)),
        named(check(between("Tanh"), ops=without_rule), "blocked.onnx"),
        failed("pointer.onnx", "error", "GC403", "pointer.onnx is a Git LFS pointer, not a model."),
        named(passing, "cut.onnx", status="severed", code="GC107", gates=("severed",),
              message="cut at node 2 Round 'q' (its derivative is zero wherever it exists)",
              gradient={**passing.gradient, "severed": Severed((Spot(2, "Round", "q"),))}),
        named(passing, "apart.onnx", status="severed", code="GC107",
              gradient={**passing.gradient, "severed": Severed((Spot(2, "Round", "q"),), (), ("logits",))}),
        failed("endless.onnx", "limit", "GC601", "not done within 10m (--timeout)\nlast seen in: points"),
    ), ("a note",), 1.5)  # fmt: skip


@pytest.fixture(scope="session")
def files(report: Report) -> Mapping[str, bytes]:
    """The folder of pages, by path."""
    return dict(folder(report))


@pytest.fixture(scope="session")
def pages(files: Mapping[str, bytes]) -> dict[str, Page]:
    return {path: Page(data.decode()) for path, data in files.items() if path.endswith(".html")}


@pytest.fixture(scope="session")
def page(report: Report) -> Page:
    """The single page."""
    return Page(single(report))


@pytest.fixture(scope="session")
def large(report: Report) -> Report:
    """Ten thousand models, a hundredth of which fail, and one model of a thousand pairs, all right."""
    right, wrong = report.checks[0], replace(report.checks[2], picture=None)
    models = [named(right if i % 100 else wrong, f"zoo/{i % 37}/net-{i:05d}.onnx") for i in range(10_000)]
    pairs = [named(right, "wide.onnx", x=f"layer{i}.weight") for i in range(1_000)]
    return Report((*models, *pairs))


@pytest.fixture(scope="session")
def large_page(large: Report) -> Page:
    return Page(single(large))


@pytest.fixture(scope="session")
def wide_page(large: Report) -> Page:
    """The page of the one model of a thousand pairs."""
    return Page(single(replace(large, checks=large.checks[-1_000:])))


@pytest.fixture(scope="session")
def written(
    files: Mapping[str, bytes], page: Page, large_page: Page, wide_page: Page, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """All on the disk: the folder `site`, the page `single.html`, and the large ones."""
    root = tmp_path_factory.mktemp("report")
    for path, data in files.items():
        (root / "site" / path).parent.mkdir(parents=True, exist_ok=True)
        (root / "site" / path).write_bytes(data)
    (root / "single.html").write_text(page.text, "utf-8")
    (root / "large.html").write_text(large_page.text, "utf-8")
    (root / "wide.html").write_text(wide_page.text, "utf-8")
    return root
