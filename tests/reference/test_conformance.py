"""The conformance suite: cases that an independent implementation confirms, and engines that are right, wrong or refuse."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from msgspec import structs
from onnx import numpy_helper

from gradcheck_cli.errors import UsageError
from gradcheck_cli.reference.scores import Score, Scored, cases_in, publish, run, write
from gradcheck_cli.reference.suite import (
    Case,
    Dropped,
    Sample,
    case_of,
    confirmed,
    drafts,
    onnx_drafts,
    operators,
    settle,
)

FEW = ("Gemm", "MLP", "Det")
ADAPTERS = """
import os, time
import numpy as np
from gradcheck_cli.reference.engines import Gradcheck

class Doubled(Gradcheck):
    def vjp(self, *args):
        outputs, gradients = super().vjp(*args)
        return outputs, {x: 2 * g for x, g in gradients.items()}

class Zero(Gradcheck):
    def vjp(self, *args):
        outputs, gradients = super().vjp(*args)
        return outputs, dict.fromkeys(gradients)

class Elsewhere(Gradcheck):
    def vjp(self, *args):
        outputs, gradients = super().vjp(*args)
        return {n: v + 1 for n, v in outputs.items()}, {x: g + 1 for x, g in gradients.items()}

class Refuses(Gradcheck):
    def load(self, model):
        raise NotImplementedError("no such thing")

class Dies(Gradcheck):
    def vjp(self, *args):
        if "det" in str(self.model):
            os._exit(9)
        return super().vjp(*args)

class Aborts(Gradcheck):
    def vjp(self, *args):
        if "det" in str(self.model):
            print("no such tensor", flush=True)
            os.abort()
        return super().vjp(*args)

class Hangs(Gradcheck):
    def vjp(self, *args):
        if "det" in str(self.model):
            time.sleep(60)
        return super().vjp(*args)

class Leaves(Gradcheck):
    def vjp(self, *args):
        if "det" in str(self.model) and not os.fork():
            time.sleep(90)
            os._exit(0)
        return super().vjp(*args)

class Talks(Gradcheck):
    def vjp(self, *args):
        print("words on stdout")
        return super().vjp(*args)
"""


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("cases")
    assert write(root, lambda name, why: None, FEW) > 20
    return root


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("adapters") / "adapters.py"
    path.write_text(ADAPTERS)
    return path


def scored(cases: Path, engine: str, patience: float = 30.0) -> Score:
    return run(engine, cases_in(cases)[::3], sys.executable, patience)


def test_our_own_gradients_are_right(cases: Path) -> None:
    pytest.importorskip("onnxruntime")
    score = scored(cases, "gradcheck")
    assert [a for a in score.answers if a.status != "right"] == []


@pytest.mark.parametrize(
    "kind, status, pattern",
    [("Doubled", "wrong", "2 times the right one"), ("Zero", "wrong", "zero"), ("Elsewhere", "forward", ""),
     ("Refuses", "refused", ""), ("Talks", "right", "")],
)  # fmt: skip
def test_an_engine_gets_what_it_deserves(cases: Path, adapters: Path, kind: str, status: str, pattern: str) -> None:
    pytest.importorskip("onnxruntime")
    score = scored(cases, f"{adapters}:{kind}")
    assert {a.status for a in score.answers} == {status}
    assert all(pattern in a.pattern for a in score.answers)


@pytest.mark.parametrize(
    "kind, patience, said",
    [("Dies", 30.0, "its process ended with exit code 9"), ("Hangs", 4.0, "it took longer than 4 s"),
     ("Aborts", 30.0, "its process was killed by SIGABRT"), ("Aborts", 30.0, "on stderr: no such tensor")],
)  # fmt: skip
def test_an_engine_that_ends_or_hangs_loses_the_case_alone_and_the_reason_is_said(
    cases: Path, adapters: Path, kind: str, patience: float, said: str
) -> None:
    pytest.importorskip("onnxruntime")
    score = scored(cases, f"{adapters}:{kind}", patience)
    assert {a.operator for a in score.answers if a.status == "crashed"} == {"Det"}
    assert all(said in a.message for a in score.answers if a.status == "crashed")
    assert {a.status for a in score.answers if a.operator != "Det"} == {"right"}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a process that shares the pipes of its parent")
def test_nobody_waits_for_a_process_that_an_engine_leaves(cases: Path, adapters: Path) -> None:
    pytest.importorskip("onnxruntime")
    start = time.monotonic()
    assert {a.status for a in scored(cases, f"{adapters}:Leaves").answers} == {"right"}
    assert time.monotonic() < start + 60


def test_a_factor_has_as_many_digits_as_the_numbers_beside_it(cases: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    (tmp_path / "near.py").write_text(ADAPTERS.replace("2 * g", "1.0003 * g"))
    found = [a.pattern for a in scored(cases, f"{tmp_path}/near.py:Doubled").answers if a.status == "wrong"]
    assert found
    assert [p for p in found if not p.startswith("1.0003 times the right one")] == []


def test_an_engine_imports_what_lies_beside_its_file(cases: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    (tmp_path / "tool_of_mine.py").write_text("from gradcheck_cli.reference.engines import Gradcheck\n")
    (tmp_path / "adapter_of_mine.py").write_text("from tool_of_mine import Gradcheck as Mine\n")
    assert {a.status for a in scored(cases, f"{tmp_path}/adapter_of_mine.py:Mine").answers} == {"right"}


def test_an_engine_that_is_not_there_is_an_error(cases: Path) -> None:
    with pytest.raises(UsageError, match="does not start"):
        scored(cases, "no-such-engine")
    with pytest.raises(UsageError, match="cannot be run"):
        run("gradcheck", cases_in(cases), "/nowhere/python")
    with pytest.raises(UsageError, match="holds no cases"):
        cases_in(cases / "nothing")


DATA = "test_data_set_0"
DAMAGED = [  # a file of a case, what it holds instead (None: there is no such file), and what is said
    ("case.json", b"{", "Expecting property name"),
    ("case.json", b"[]", "list indices"),
    ("case.json", b'{"operator": "Det", "bounds": {"x": 1, "z": 1}}', "there is no gradient for 'z'"),
    ("model.onnx", b"\x08", "Error parsing"),
    ("model.onnx", b"", "there is no gradient for 'x'"),
    ("model.onnx", None, "No such file"),
    *((f"{DATA}/{kind}_0.pb", b"\x08", "Error parsing") for kind in ("input", "output", "gradient", "cotangent")),
    *((f"{DATA}/{kind}_0.pb", None, f"there is no {kind} for ") for kind in ("input", "output", "gradient", "cotangent")),
]  # fmt: skip


@pytest.mark.parametrize(("name", "held", "said"), DAMAGED)
def test_a_damaged_case_is_no_fault_of_an_engine(
    cases: Path, tmp_path: Path, name: str, held: bytes | None, said: str
) -> None:
    root = tmp_path / "cases"
    folder = shutil.copytree(next(cases.glob("det_*")), root / "det")
    assert cases_in(root) == [folder]
    if held is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(held)
    with pytest.raises(UsageError, match=r"the case .*det cannot be read: .* gradcheck conformance write") as error:
        cases_in(root)
    assert said in str(error.value)


def test_cases_are_the_same_each_time(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path / name, lambda name, why: None, ("Det",))
    one, two = (sorted((tmp_path / name).rglob("*.*")) for name in ("a", "b"))
    assert [p.relative_to(tmp_path / "a") for p in one] == [p.relative_to(tmp_path / "b") for p in two]
    assert all(p.read_bytes() == q.read_bytes() for p, q in zip(one, two, strict=True) if p.is_file())


def test_a_case_has_the_layout_of_onnxs_backend_tests(cases: Path) -> None:
    folder = cases_in(cases)[0]
    model = onnx.load(folder / "model.onnx")
    onnx.checker.check_model(model)
    data = folder / "test_data_set_0"
    for index, value in enumerate(model.graph.input):
        read = numpy_helper.to_array(onnx.load_tensor(data / f"input_{index}.pb"))
        gradient = numpy_helper.to_array(onnx.load_tensor(data / f"gradient_{index}.pb"))
        assert read.shape == gradient.shape == tuple(d.dim_value for d in value.type.tensor_type.shape.dim)
    known = json.loads((folder / "case.json").read_text())
    assert known["oracle"]["by"].startswith("differences of onnx")


def test_small_cases_have_whole_jacobians_whose_products_with_cotangents_are_the_gradients(cases: Path) -> None:
    counted = 0
    for folder in cases_in(cases):
        graph, data = onnx.load(folder / "model.onnx").graph, folder / "test_data_set_0"
        for i, x in enumerate(graph.input):
            parts = [(j, data / f"jacobian_{j}_{i}.pb") for j in range(len(graph.output))]
            if not parts[0][1].exists():
                continue
            jacobians = [numpy_helper.to_array(onnx.load_tensor(path)) for _, path in parts]
            cts = [numpy_helper.to_array(onnx.load_tensor(data / f"cotangent_{j}.pb")) for j, _ in parts]
            pulled = sum(np.tensordot(ct, jacobian, ct.ndim) for ct, jacobian in zip(cts, jacobians, strict=True))
            given = numpy_helper.to_array(onnx.load_tensor(data / f"gradient_{i}.pb"))
            assert jacobians[0].shape[cts[0].ndim :] == given.shape, x.name
            np.testing.assert_allclose(pulled, given, rtol=1e-11, atol=1e-12 * np.abs(given).max(initial=1.0))
            counted += 1
    assert counted > 10


def test_a_jacobian_that_is_wrong_where_no_cotangent_sees_it_is_not_confirmed() -> None:
    case = case_of(next(d for d in drafts() if d.operator == "Det"), confirmed)
    wrong = structs.replace(case, jacobians={key: 1.001 * jacobian for key, jacobian in case.jacobians.items()})
    assert case.jacobians
    with pytest.raises(Dropped, match="no oracle"):
        confirmed(wrong)


def test_a_case_of_second_order_is_a_gradient_whose_gradient_is_a_second_derivative() -> None:
    """z = c tanh x: its gradients are c (1 - t^2) and t, whose derivatives by x are -2 c t (1 - t^2) and 1 - t^2."""
    draft = next(d for d in drafts() if d.operator == "Tanh, second order")
    case = case_of(draft, confirmed)
    (x, c), (by_x, by_c) = case.inputs, case.outputs
    t, cts = np.tanh(np.float64(case.inputs[x])), case.cotangents
    right = -2 * case.inputs[c] * t * (1 - t**2) * cts[by_x] + (1 - t**2) * cts[by_c]
    np.testing.assert_allclose(case.gradients[x], right, rtol=1e-10)
    assert (case.kind, case.rules["Mul"]) == ("second order", "proven")
    assert case.oracle == "differences of onnx.reference"


def test_differences_are_taken_in_float64_where_a_model_has_constants_of_float32() -> None:
    model = parsed(8, 13, "Tanh")
    model.graph.initializer.append(numpy_helper.from_array(np.float32([2, 3]), "w"))
    model.graph.node.add(op_type="Mul", input=["y", "w"], output=["z"])
    model.graph.output[0].name = "z"
    case = case_of(Sample("constants", "Tanh", "attributes", model, {"x": np.float32([0.5, 1])}), confirmed)
    assert (case.oracle, case.gap < 1e-9) == ("differences of onnx.reference", True)
    assert model.graph.initializer[0].data_type == onnx.TensorProto.FLOAT


@pytest.mark.parametrize("factor", [0.0, 1.01, -1.0])
def test_a_reference_that_is_wrong_is_not_confirmed(factor: float) -> None:
    draft = next(d for d in drafts() if d.operator == "Tanh")
    case = case_of(draft, confirmed)
    wrong = Case(**{f: getattr(case, f) for f in case.__struct_fields__ if f != "gradients"},
                 gradients={x: factor * g for x, g in case.gradients.items()})  # fmt: skip
    with pytest.raises(Dropped, match="no oracle"):
        confirmed(wrong)


@pytest.mark.parametrize("operator", operators())
def test_every_line_of_the_table_makes_a_model(operator: str) -> None:
    assert any(d.operator == operator for d in drafts())


def parsed(ir_version: int, opset: int, operator: str) -> onnx.ModelProto:
    head = f'<ir_version: {ir_version}, opset_import: ["" : {opset}]>'
    return onnx.parser.parse_model(f"{head} g (float[2] x) => (float[2] y) {{ y = {operator}(x) }}")


def test_an_operator_at_a_kink_makes_no_case() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 13]> g (float[2] x) => (float[2] y) { y = Relu(x) }'
    )
    at = Sample("kink", "Relu", "attributes", model, {"x": np.zeros(2, np.float32)})
    case = case_of(at, confirmed)  # other numbers are drawn
    assert np.abs(case.inputs["x"]).min() > 0


def test_models_get_the_first_opset_at_which_they_mean_the_same() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21]> g (float[2] x) => (float[2] y) { y = Tanh(x) }'
    )
    settle(model)
    assert (model.opset_import[0].version, model.ir_version) == (13, 8)


def test_there_are_drafts_of_onnx_for_most_operators() -> None:
    assert len({d.operator for d in onnx_drafts()}) > 150


def test_reasons_that_differ_in_digits_are_one_and_the_most_frequent_stands_first() -> None:
    said = ["no Det", "shape 3 at node 12", "no Det", "shape 4 at node 7", "shape 3 at node 1", "other"]
    refused = tuple(Scored(f"case{i}", "Det", "refused", message) for i, message in enumerate(said))
    score = Score("engine", (Scored("case", "Det", "crashed", "no Det"), *refused))
    assert score.reasons() == [("shape 3 at node 12", 3), ("no Det", 2), ("other", 1)]


def test_the_board_is_a_page_and_a_badge(cases: Path, adapters: Path, tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    scores = [scored(cases, "gradcheck"), scored(cases, f"{adapters}:Doubled")]
    for score, name in zip(scores, ("a.json", "b.json"), strict=True):
        score.write(tmp_path / name)
    assert [Score.read(tmp_path / name) for name in ("a.json", "b.json")] == scores
    publish(scores, tmp_path / "board.html")
    publish(scores, tmp_path / "badge.svg")
    assert "2 times the right one" in (tmp_path / "board.html").read_text()
    assert "0 wrong" in (tmp_path / "badge.svg").read_text()
    with pytest.raises(UsageError, match=r"neither .html nor .svg"):
        publish(scores, tmp_path / "board.pdf")
