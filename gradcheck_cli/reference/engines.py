"""Engines that differentiate ONNX models, each an adapter of a few lines.

The file is also a program that imports NumPy, onnx and the engine alone: it runs inside of the environment in which an
engine is installed.  Each line that it reads is the folder of a case; each line that it writes is a JSON object.

    python engines.py NAME OUT < folders
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnx
from onnx import numpy_helper

Arrays = dict[str, Any]


class Tested(Protocol):
    """An engine under test; an error that it raises counts as a refusal."""

    name: str

    def load(self, model: Path) -> None:
        """Reads a model."""

    def vjp(self, inputs: Arrays, cotangents: Arrays, xs: list[str]) -> tuple[Arrays, Mapping[str, Any]]:
        """The outputs by name, and sum over y of <cotangent of y, d y / d x> for `xs`.

        None says that there is no gradient; an x that is left out is not asked for.
        """


class Torch(ABC):
    """PyTorch's gradients of a module from a converter; weights that it takes as constants alone are not asked for."""

    name = "torch"

    def load(self, model: Path) -> None:
        self.proto = onnx.load(model)

    @abstractmethod
    def _module(self, proto: onnx.ModelProto) -> Any:
        """The module that computes a model."""

    def vjp(self, inputs: Arrays, cotangents: Arrays, xs: list[str]) -> tuple[Arrays, Mapping[str, Any]]:
        try:
            return self._of(self._module(self.proto), inputs, cotangents, xs)
        except KeyError:
            first = next(n for n in inputs if n in xs)
            held = _held(self.proto, {n: v for n, v in inputs.items() if n != first})
            return self._of(self._module(held), {first: inputs[first]}, cotangents, [first])

    def _of(self, module: Any, inputs: Arrays, cotangents: Arrays, xs: list[str]) -> tuple[Arrays, Mapping[str, Any]]:
        import torch

        given = {n: torch.from_numpy(np.array(v)) for n, v in inputs.items()}
        for x in xs:
            given[x].requires_grad_()
        made = module.eval()(*given.values())
        made = made if isinstance(made, (tuple, list)) else [made]
        outputs = dict(zip([o.name for o in self.proto.graph.output], made, strict=False))
        values = {n: v.detach().numpy() for n, v in outputs.items()}
        pairs = [
            (outputs[y], torch.from_numpy(np.array(ct))) for y, ct in cotangents.items() if outputs[y].requires_grad
        ]
        if not pairs:
            return values, dict.fromkeys(xs)
        ys, cts = zip(*pairs, strict=True)
        found = torch.autograd.grad(ys, [given[x] for x in xs], cts, allow_unused=True)
        return values, {x: None if g is None else g.numpy() for x, g in zip(xs, found, strict=True)}


class Onnx2Torch(Torch):
    """PyTorch, by onnx2torch."""

    name = "onnx2torch"

    def _module(self, proto: onnx.ModelProto) -> Any:
        import onnx2torch

        return onnx2torch.convert(proto)


class Onnx2PyTorch(Torch):
    """PyTorch, by onnx2pytorch."""

    name = "onnx2pytorch"

    def _module(self, proto: onnx.ModelProto) -> Any:
        import onnx2pytorch

        return onnx2pytorch.ConvertModel(proto, experimental=True)


class Tinygrad:
    """tinygrad's own reader of ONNX files, and its gradients."""

    name = "tinygrad"

    def load(self, model: Path) -> None:
        from tinygrad.nn.onnx import OnnxRunner

        self.runner = OnnxRunner(model)

    def vjp(self, inputs: Arrays, cotangents: Arrays, xs: list[str]) -> tuple[Arrays, Mapping[str, Any]]:
        from tinygrad import Tensor

        given = {n: Tensor(np.array(v)) for n, v in inputs.items()}
        for x in xs:
            given[x].requires_grad = True
        outputs = self.runner(given)
        total = sum(((outputs[y] * Tensor(np.array(ct))).sum() for y, ct in cotangents.items()), Tensor(0.0))
        found = total.gradient(*(given[x] for x in xs))
        gradients = {x: None if g is None else g.numpy() for x, g in zip(xs, found, strict=True)}
        return {n: v.numpy() for n, v in outputs.items()}, gradients


class Jax:
    """JAX's gradients of the function that jaxonnxruntime makes."""

    name = "jaxonnxruntime"

    def load(self, model: Path) -> None:
        self.proto = onnx.load(model)

    def vjp(self, inputs: Arrays, cotangents: Arrays, xs: list[str]) -> tuple[Arrays, Mapping[str, Any]]:
        import jax
        from jaxonnxruntime import call_onnx

        jax.config.update("jax_enable_x64", True)
        function, weights = call_onnx.call_onnx_model(self.proto, dict(inputs))
        names = [o.name for o in self.proto.graph.output]

        def of(*moved: Any) -> Any:
            return function(weights, {**inputs, **dict(zip(xs, moved, strict=True))})

        made, back = jax.vjp(of, *(inputs[x] for x in xs))
        cts = [cotangents[n] if n in cotangents else _nothing(y, jax) for n, y in zip(names, made, strict=True)]
        found = back(type(made)(np.asarray(c, y.dtype) if n in cotangents else c
                                for n, c, y in zip(names, cts, made, strict=True)))  # fmt: skip
        outputs = {n: np.asarray(y) for n, y in zip(names, made, strict=True)}
        return outputs, {x: np.asarray(g) for x, g in zip(xs, found, strict=True)}


def _nothing(y: Any, jax: Any) -> Any:
    """The cotangent of an output that none is asked of."""
    return np.zeros(y.shape, y.dtype if np.issubdtype(y.dtype, np.inexact) else jax.dtypes.float0)


class OnnxAd:
    """onnx-ad's reverse model, run by onnxruntime."""

    name = "onnx-ad"

    def load(self, model: Path) -> None:
        self.proto = onnx.load(model)

    def vjp(self, inputs: Arrays, cotangents: Arrays, xs: list[str]) -> tuple[Arrays, Mapping[str, Any]]:
        import onnx_ad

        back = onnx_ad.reverse(self.proto, inputs=xs, outputs=list(cotangents), layout="onnx")
        feeds = {**inputs, **{f"adj_{y}": np.asarray(ct)[..., None] for y, ct in cotangents.items()}}
        made = _run(back, feeds)
        outputs = {o.name: made[o.name] for o in self.proto.graph.output}
        return outputs, {x: made[f"adj_{x}"][..., 0] for x in xs}


class OrtTraining:
    """The gradient graph of onnxruntime-training."""

    name = "onnxruntime-training"

    def load(self, model: Path) -> None:
        self.proto = onnx.load(model)

    def vjp(self, inputs: Arrays, cotangents: Arrays, xs: list[str]) -> tuple[Arrays, Mapping[str, Any]]:
        from onnxruntime.training.onnxblock import _training_graph_utils as graphs

        names = [o.name for o in self.proto.graph.output]
        model = _with_loss(self.proto, cotangents)
        loss = model.graph.output[0].name
        back, _ = graphs.build_gradient_graph(model, set(xs), set(), [loss, *names])
        made = _run(back, {**inputs, **{f"__ct_{y}": np.asarray(ct) for y, ct in cotangents.items()}})
        found = {x: made.get(f"{x}_grad") for x in xs}
        for x, gradient in found.items():
            if gradient is not None and gradient.shape == (1,) and np.ndim(inputs[x]) == 0:
                found[x] = gradient.reshape(())  # that of its loss has shape [1], and so have those of scalars
        return {n: made[n] for n in names}, found


class Gradcheck:
    """gradcheck's gradient file, run by onnxruntime."""

    name = "gradcheck"

    def load(self, model: Path) -> None:
        self.model = model

    def vjp(self, inputs: Arrays, cotangents: Arrays, xs: list[str]) -> tuple[Arrays, Mapping[str, Any]]:
        import tempfile

        from gradcheck_cli.api import load, save
        from gradcheck_cli.api.gradients import gradients as add_gradients
        from gradcheck_cli.errors import GradcheckError

        tested = load(self.model)
        found = add_gradients([tested[y] for y in cotangents], [tested[x] for x in xs], list(cotangents.values()))
        names = [o.name for o in onnx.load(self.model).graph.output]
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "gradient.onnx"
            outputs = [*(tested[n] for n in names), *(g for g in found if g is not None)]
            try:
                save(tested, file, outputs)
            except GradcheckError:  # what is no x may decide what an operator does: it has its value in the file
                save(tested, file, outputs, feeds={n: v for n, v in inputs.items() if n not in xs})
            made = _run(onnx.load(file), inputs)
        gradients = {x: None if g is None else made[g.name] for x, g in zip(xs, found, strict=True)}
        return {n: made[n] for n in names}, gradients


def _with_loss(proto: onnx.ModelProto, cotangents: Arrays) -> onnx.ModelProto:
    """The model with one more output in front, the sum of its outputs' products with their cotangents."""
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    graph, terms = made.graph, []
    types = {o.name: o.type.tensor_type.elem_type for o in graph.output}
    for y, ct in cotangents.items():
        graph.input.append(onnx.helper.make_tensor_value_info(f"__ct_{y}", types[y], np.shape(ct)))
        graph.node.append(onnx.helper.make_node("Mul", [y, f"__ct_{y}"], [f"__weighted_{y}"]))
        graph.node.append(onnx.helper.make_node("ReduceSum", [f"__weighted_{y}"], [f"__term_{y}"], keepdims=0))
        terms.append(f"__term_{y}")
    for i, term in enumerate(terms[1:], 1):
        graph.node.append(onnx.helper.make_node("Add", [terms[0], term], [f"__total_{i}"]))
        terms[0] = f"__total_{i}"
    graph.output.insert(0, onnx.helper.make_tensor_value_info(terms[0], types[next(iter(cotangents))], ()))
    return made


def _held(proto: onnx.ModelProto, values: Arrays) -> onnx.ModelProto:
    """The model with some of its inputs as constants."""
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    kept = [i for i in made.graph.input if i.name not in values]
    del made.graph.input[:]
    made.graph.input.extend(kept)
    made.graph.initializer.extend(numpy_helper.from_array(np.asarray(v), n) for n, v in values.items())
    return made


def session_of(proto: onnx.ModelProto) -> Any:
    """A session of onnxruntime on one thread, which says nothing of what it warns of."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    return onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _run(proto: onnx.ModelProto, feeds: Arrays) -> Arrays:
    session = session_of(proto)
    wanted = {i.name for i in session.get_inputs()}
    made = session.run(None, {n: v for n, v in feeds.items() if n in wanted})
    return dict(zip([o.name for o in session.get_outputs()], made, strict=True))


ENGINES: dict[str, type[Any]] = {
    engine.name: engine for engine in (Gradcheck, OnnxAd, OrtTraining, Onnx2Torch, Onnx2PyTorch, Tinygrad, Jax)
}


def engine(name: str) -> Tested:
    """An engine of the table, or one of a file: `path.py:Class`."""
    if name in ENGINES:
        return ENGINES[name]()
    path, _, kind = name.rpartition(":")
    spec = importlib.util.spec_from_file_location("adapter", path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"there is no engine {name!r}; known are {', '.join(ENGINES)}, or path.py:Class")
    sys.path.append(str(Path(path).resolve().parent))  # it may import what lies beside it
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, kind)()


def tensors(folder: Path, kind: str, names: Iterable[str]) -> Arrays:
    """The arrays `kind_0.pb`, `kind_1.pb` ... of a case that exist, by the names of inputs or outputs."""
    files = [(name, folder / "test_data_set_0" / f"{kind}_{i}.pb") for i, name in enumerate(names)]
    return {name: numpy_helper.to_array(onnx.load_tensor(file)) for name, file in files if file.exists()}


def answer(tested: Tested, folder: Path, out: Path) -> dict[str, Any]:
    """The answer of an engine to a case; its outputs and gradients go to a file."""
    start = time.perf_counter()
    graph = onnx.load(folder / "model.onnx", load_external_data=False).graph
    inputs = tensors(folder, "input", (i.name for i in graph.input))
    cotangents = tensors(folder, "cotangent", (o.name for o in graph.output))
    xs = list(tensors(folder, "gradient", (i.name for i in graph.input)))
    try:
        tested.load(folder / "model.onnx")
        outputs, gradients = tested.vjp(inputs, cotangents, xs)
        made = {f"y/{n}": np.asarray(v) for n, v in outputs.items()}
        made |= {f"x/{n}": np.asarray(v) for n, v in gradients.items() if v is not None}
        if any(array.dtype.hasobject for array in made.values()):
            raise ValueError("it gives objects where arrays are asked for")
        np.savez(str(out / f"{folder.name}.npz"), **made)  # type: ignore[arg-type]  # names have a prefix
    except (Exception, SystemExit) as error:
        said = f"{type(error).__name__}: {' '.join(str(error).split())}"[-500:]
        said = said.encode("utf-8", "backslashreplace").decode()  # half a surrogate pair is no JSON
        return {"case": folder.name, "refused": said, "seconds": time.perf_counter() - start}
    return {"case": folder.name, "refused": "", "xs": list(gradients), "seconds": time.perf_counter() - start}


def main(name: str, out: str) -> None:
    """A line once the engine is there, then answers for each folder that comes in; what it prints goes to stderr."""
    said = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    tested = engine(name)
    print(json.dumps({"engine": name}), file=said, flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(tested, Path(line.rstrip("\n")), Path(out))), file=said, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
