"""Where things are: in a folder of pages, or on a single page."""

from __future__ import annotations

from collections.abc import Container
from typing import ClassVar, Protocol, TypeAlias

from gradcheck_cli.report.html.models import Model

Menu: TypeAlias = list[tuple[str, str, bool]]  # label, address, and whether one is there
_LINKED = ("Summary", "Models", "Operators")


class Links(Protocol):
    """Addresses as pages write them; `level` is that of the heading of a model."""

    single: ClassVar[bool]
    level: ClassVar[int]

    @property
    def summary(self) -> str: ...

    def menu(self, here: str) -> Menu: ...

    def models(self, order: str, page: int = 1) -> str: ...

    def model(self, model: Model) -> str: ...

    def check(self, model: Model, index: int) -> str: ...

    def anchor(self, model: Model, index: int) -> str: ...


class InFolder:
    """A page for each model, and one for each order of them; `up` leads from a page to the folder."""

    single: ClassVar[bool] = False
    level: ClassVar[int] = 1

    def __init__(self, up: str = "") -> None:
        self.up = up

    @property
    def summary(self) -> str:
        return f"{self.up}index.html"

    def menu(self, here: str) -> Menu:
        places = (self.summary, self.models("outcome"), f"{self.up}operators.html")
        return [(label, place, label == here) for label, place in zip(_LINKED, places, strict=True)]

    def models(self, order: str, page: int = 1) -> str:
        by = "" if order == "outcome" else f"-by-{order}"
        return f"{self.up}models{by}{f'-{page}' if page > 1 else ''}.html"

    def model(self, model: Model) -> str:
        return f"{self.up}model/{model.slug}.html"

    def check(self, model: Model, index: int) -> str:
        return f"{self.model(model)}#{self.anchor(model, index)}"

    def anchor(self, model: Model, index: int) -> str:
        return f"pair-{index}"


class OnPage:
    """Sections of one page; of models that have none (not among `told`) the table is what there is."""

    single: ClassVar[bool] = True
    level: ClassVar[int] = 2
    summary = "#summary"

    def __init__(self, told: Container[str]) -> None:
        self.told = told

    def menu(self, here: str) -> Menu:
        return [(label, f"#{label.lower()}", False) for label in _LINKED]

    def models(self, order: str, page: int = 1) -> str:
        return "#models"

    def model(self, model: Model) -> str:
        return f"#{model.slug}" if model.slug in self.told else "#models"

    def check(self, model: Model, index: int) -> str:
        return f"#{self.anchor(model, index)}" if model.slug in self.told else "#models"

    def anchor(self, model: Model, index: int) -> str:
        return f"{model.slug}-{index}"
