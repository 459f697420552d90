"""Reads the graphs of a spec as sources: inputs with their types, parameters with their values, nodes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from gradcheck_cli.errors import ModelError, did_you_mean, named
from gradcheck_cli.formats.gradient_nodes import with_bodies
from gradcheck_cli.formats.onnx.opset import NEWEST
from gradcheck_cli.formats.source import Initialization, Source
from gradcheck_cli.formats.yaml.custom_ops import OperatorTable
from gradcheck_cli.formats.yaml.fields import GraphSpec, ParamSpec
from gradcheck_cli.formats.yaml.nodes import DEFAULT_OPSET, Scope, add_constants, check_outputs, read_nodes
from gradcheck_cli.formats.yaml.places import DocumentPath
from gradcheck_cli.formats.yaml.values import Values, constant, dtype_of, graph_float
from gradcheck_cli.graph import Array, Graph, TensorType


def read_graph(
    name: str, written: GraphSpec, spot: DocumentPath, operators: OperatorTable, values: Values,
    given_dims: Mapping[str, int],
) -> Source:  # fmt: skip
    """Reads one entry of `graphs`; `given_dims` are sizes from the caller, which override the file's."""
    shapes = (getattr(each, "shape", None) or () for each in (*written.inputs.values(), *written.params.values()))
    symbols = {dim for shape in shapes for dim in shape if isinstance(dim, str)}
    dims = {**written.dims, **{key: size for key, size in given_dims.items() if key in symbols}}
    for key in (each for each in written.dims if each not in symbols):
        with spot.document.collecting():
            message = f"no shape of this graph uses the size {key!r}.{did_you_mean(key, symbols)}"
            raise (spot / "dims" / key).error(message, key=True)
    types = {key: TensorType(dtype_of(value.dtype), None if value.shape is None else tuple(value.shape))
             for key, value in written.inputs.items()}  # fmt: skip
    params = _params(name, written, dims, spot, values)
    types |= {key: TensorType(array.dtype, array.shape) for key, array in params.items()}
    float_dtype = graph_float([kind.dtype for kind in types.values() if kind.dtype is not None])
    local = {*written.inputs, *written.params}
    if written.opset is not None and written.opset > NEWEST:
        raise (spot / "opset").error(f"opset {written.opset} is not known; the newest known is {NEWEST}")
    version = written.opset or DEFAULT_OPSET
    scope = Scope(operators.resolve, float_dtype, local, version, types, constants=dict(params))
    add_constants(written.constants, spot / "constants", scope)
    nodes = read_nodes(written.nodes, spot / "nodes", scope)
    check_outputs(written.outputs, spot / "outputs", scope)
    opset = {"": version, **dict.fromkeys(sorted({node.domain for node in nodes} - {""}), 1)}
    newest = {**opset, "": NEWEST} if written.opset else opset
    try:
        outputs = tuple(written.outputs)
        nodes_in_order, inputs, trained = with_bodies(nodes, types), tuple(written.inputs), frozenset(params)
        graph = Graph(inputs, outputs, nodes_in_order, scope.constants, types, newest, name, trained)
    except ModelError as error:
        raise spot.error(str(error), key=True) from None
    return Source(
        graph=graph,
        uri=spot.document.path,
        sha256=hashlib.sha256(spot.document.data).hexdigest(),
        opset=opset,
        nodes=len(nodes),
        line=spot.line,
        operators=operators.bodies,
        ranges={key: (each.range[0], each.range[1]) for key, each in written.inputs.items() if each.range is not None},
        dims=dims,
    )


def read_initializations(
    groups: Mapping[str, Mapping[str, Any]], sources: Mapping[str, Source], spot: DocumentPath, values: Values
) -> dict[str, dict[str, Initialization]]:
    """Reads the groups of `init`: for each graph, those that set some of its parameters."""
    found: dict[str, dict[str, Initialization]] = {name: {} for name in sources}
    for group, written in groups.items():
        with spot.document.collecting():
            _check_group(written, sources, spot / group, values)
            for name, source in sources.items():
                arrays = _group_values(group, written, source, spot / group, values)
                if arrays:
                    graph = Graph((), tuple(arrays), (), arrays, name=group)
                    found[name][group] = Initialization(graph, {tensor: tensor for tensor in arrays})
    return found


def parameters(source: Source) -> dict[str, Array]:
    """The parameters of a graph: constants whose type is declared."""
    return {name: array for name, array in source.graph.constants.items() if name in source.graph.types}


def _params(
    name: str, written: GraphSpec, dims: Mapping[str, int], spot: DocumentPath, values: Values
) -> dict[str, Array]:
    found: dict[str, Array] = {}
    for key, value in written.params.items():
        with spot.document.collecting():
            place = spot / "params" / key
            if key in written.inputs:
                raise place.error(f"{key!r} is an input already", key=True)
            if isinstance(value, ParamSpec):
                shape = None if value.shape is None else _sizes(value.shape, dims, place / "shape")
                found[key] = values.initial(value.init, shape, dtype_of(value.dtype), place / "init", name, key)
            else:  # a bare number or list, as a float
                array = constant(value, np.dtype(np.float32), place)
                found[key] = array.astype(np.float32) if array.dtype.kind in "iu" else array
    return found


def _sizes(shape: list[Any], dims: Mapping[str, int], spot: DocumentPath) -> tuple[int, ...]:
    for index, dim in enumerate(shape):
        if not isinstance(dim, int) and dim not in dims:
            unknown = "an unknown size" if dim is None else f"the size {dim!r}, which 'dims' does not give"
            raise (spot / index).error(f"a parameter has {unknown}.{did_you_mean(str(dim), dims)}")
    return tuple(dim if isinstance(dim, int) else dims[dim] for dim in shape)


def _check_group(written: Mapping[str, Any], sources: Mapping[str, Source], spot: DocumentPath, values: Values) -> None:
    known = {name for source in sources.values() for name in parameters(source)}
    for name in written:
        if name != "from" and name not in known:
            message = f"no parameter is called {name!r}.{did_you_mean(name, known)}"
            raise (spot / name).error(message, key=True)
    if "from" in written:
        if not isinstance(written["from"], str):
            raise (spot / "from").error("must be the path of a .npz file")
        names = values.folder.names(written["from"], spot / "from")
        if known.isdisjoint(names):
            message = f"{written['from']!r} has no array called like a parameter; it has {named(names, 10)}"
            raise (spot / "from").error(message)


def _group_values(
    group: str, written: Mapping[str, Any], source: Source, spot: DocumentPath, values: Values
) -> dict[str, Array]:
    params = parameters(source)
    inits = {name: (init, spot / name) for name, init in written.items() if name != "from"}
    if "from" in written:
        path = written["from"]
        for name in values.folder.names(path, spot / "from"):
            inits.setdefault(name, ({"kind": "file", "path": path, "key": name}, spot / "from"))
    return {
        name: values.initial(init, params[name].shape, params[name].dtype, place, group, name)
        for name, (init, place) in inits.items()
        if name in params
    }
