"""Errors that people make in gradient rules: each kind is a wrong rule of one operator, and cases that it shows at."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.graph import Graph, Node
from tests.corpus.wrong_rules import (
    Rule,
    as_if,
    batch_norm,
    condition_turned,
    duplicates_overwritten,
    first_copy,
    first_output_alone,
    groups_ignored,
    instead,
    layer_norm_eps_outside,
    layer_norm_stopped,
    layer_norm_without_mean,
    lost,
    mean_for_sum,
    no_leak,
    norm_stopped,
    not_flipped,
    not_flipped_indices,
    not_inverted,
    not_transposed,
    ones_for,
    other_axis,
    other_leak,
    other_pixels,
    pad_counted,
    pads_swapped,
    power_without_log,
    quotient_without_second_term,
    rms_norm_eps_outside,
    rms_norm_stopped,
    rule,
    same_direction,
    softmax_without_sum,
    split_swapped,
    straight_through,
    to_the_first,
    where_it_fits,
    wrong_axis,
)
from tests.ops.case import Case, arr, case


@dataclass(frozen=True)
class Kind:
    """A wrong rule of an operator, and the ways of using the operator at which it is wrong."""

    name: str
    rule: Rule
    cases: tuple[Case, ...]

    @property
    def key(self) -> tuple[str, str]:
        """The operator's place in the table."""
        return self.cases[0].domain, self.cases[0].op


X23, X33, W = arr(2, 3), arr(3, 3), arr(3, 3, seed=1)
IMAGE, FILTER = arr(1, 2, 5, 6), arr(3, 2, 3, 3)
AROUND = {"pads": (1, 1, 1, 1)}
HALVES = {"scales": (1.0, 1.0, 2.0, 1.5), "mode": "linear"}
RESIZED = case("Resize", arr(1, 1, 3, 4), None, np.array([1.0, 1.0, 2.0, 1.5]), mode="linear")
STATISTICS = (arr(3, low=0.5, high=2.0), arr(3), arr(3, seed=2), arr(3, low=0.5, high=2.0, seed=3))
VECTOR = (arr(4, low=0.5, high=2.0), arr(4, seed=1))
TRAINING = tuple(
    case("BatchNormalization", arr(2, 3, 4), *STATISTICS, training_mode=1, epsilon=e) for e in (1e-5, 1e-2)
)
LAYER = tuple(case("LayerNormalization", arr(3, 4), *VECTOR, axis=-1, epsilon=e) for e in (1e-5, 1e-2))
RMS = tuple(case("RMSNormalization", arr(3, 4), VECTOR[0], axis=-1, epsilon=e) for e in (1e-5, 1e-2))
BODY = Graph(("i", "c", "s"), ("c", "t"), (Node("Sin", ("s",), ("u",)), Node("Sub", ("s", "u"), ("t",))))

KINDS = [
    Kind("wrong axis of a broadcast sum", where_it_fits("Add", wrong_axis, 2, 1), (case("Add", X33, arr(3)),)),
    Kind("mean for a broadcast sum", where_it_fits("Add", mean_for_sum, 2, 1),
         (case("Add", X33, arr(3)), case("Add", arr(5, 3), arr(3)))),
    Kind("mean for a sum", rule("ReduceMean"), (case("ReduceSum", X23, np.array([1])), case("ReduceSum", X23))),
    Kind("a mean without 1/N", rule("ReduceSum"), (case("ReduceMean", X23, np.array([1])), case("ReduceMean", X23))),
    Kind("weight not transposed", where_it_fits("MatMul", not_transposed, 2, 2), (case("MatMul", X23, W),)),
    Kind("a power without ln a", power_without_log, (case("Pow", arr(4, low=0.5, high=3.0), arr(4, seed=4)),)),
    Kind("a quotient without its second term", quotient_without_second_term,
         (case("Div", X23, arr(2, 3, low=0.5, high=2.0)),)),
    Kind("alpha of Gemm ignored", instead("Gemm", alpha=1.0), (case("Gemm", X23, W, arr(3), alpha=0.5, beta=2.0),)),
    Kind("beta of Gemm ignored", instead("Gemm", beta=1.0), (case("Gemm", X23, W, arr(3), alpha=0.5, beta=2.0),)),
    Kind("epsilon dropped in a layer norm", instead("LayerNormalization", epsilon=0.0), LAYER),
    Kind("epsilon dropped in an RMS norm", instead("RMSNormalization", epsilon=0.0), RMS),
    Kind("epsilon dropped in a batch norm", instead("BatchNormalization", epsilon=0.0), TRAINING),
    Kind("epsilon outside the root of a layer norm", as_if(layer_norm_eps_outside), LAYER),
    Kind("epsilon outside the root of an RMS norm", as_if(rms_norm_eps_outside), RMS),
    Kind("epsilon outside the root of a batch norm", as_if(lambda *xs, **m: batch_norm(*xs, inside=False, **m)),
         TRAINING),
    Kind("variance over N - 1", as_if(lambda *xs, **m: batch_norm(*xs, unbiased=True, **m)), TRAINING),
    Kind("a batch norm by fixed statistics", instead("BatchNormalization", training_mode=0), TRAINING[:1]),
    Kind("a layer norm without its mean term", layer_norm_without_mean, LAYER),
    Kind("gradient stopped at a layer norm's deviation", layer_norm_stopped, LAYER),
    Kind("gradient stopped at an RMS", rms_norm_stopped, RMS),
    Kind("gradient stopped at a norm", norm_stopped, (case("LpNormalization", X23, axis=-1, p=2),)),
    Kind("softmax without its sum", softmax_without_sum, (case("Softmax", X23, axis=-1), case("Softmax", X23, axis=0))),
    Kind("softmax on the wrong axis", other_axis("Softmax"), (case("Softmax", X23, axis=0),)),
    Kind("log-softmax on the wrong axis", other_axis("LogSoftmax"), (case("LogSoftmax", X23, axis=0),)),
    Kind("GELU by tanh for erf", instead("Gelu", approximate="tanh"), (case("Gelu", arr(6)),)),
    Kind("GELU by erf for tanh", instead("Gelu", approximate="none"), (case("Gelu", arr(6), approximate="tanh"),)),
    Kind("one way of a fan-out: a product", lambda ct, y, a, b: (ct * b, None), (case("Mul", X23, X33[:2]),)),
    Kind("one way of a fan-out: a sum", lost(rule("Sum"), 0), (case("Sum", X23, X33[:2], W[:2]),)),
    Kind("one way of a fan-out: a concatenation", lost(rule("Concat"), 1), (case("Concat", X23, X33[:2], axis=0),)),
    Kind("padding of a convolution offset", pads_swapped, (
        case("Conv", IMAGE, FILTER, arr(3), pads=(0, 1, 2, 0)),
        case("Conv", IMAGE, FILTER, pads=(2, 0, 0, 1), strides=(2, 1)))),
    Kind("stride of a convolution ignored", ones_for("strides"),
         (case("Conv", IMAGE, FILTER, strides=(2, 2), **AROUND),)),
    Kind("dilation of a convolution ignored", ones_for("dilations"),
         (case("Conv", IMAGE, FILTER, dilations=(2, 2), **AROUND),)),
    Kind("kernel not flipped", not_flipped, (case("Conv", IMAGE, FILTER, **AROUND),)),
    Kind("groups ignored", groups_ignored, (case("Conv", arr(1, 4, 4, 4), arr(4, 2, 3, 3), group=2, **AROUND),)),
    Kind("max pool to the first element", to_the_first, (
        case("MaxPool", arr(1, 2, 4, 4), kernel_shape=(2, 2), strides=(2, 2)),)),
    Kind("padding counted by an average pool", pad_counted, (
        case("AveragePool", IMAGE, kernel_shape=(3, 3), **AROUND),
        case("AveragePool", IMAGE, kernel_shape=(2, 2), pads=(1, 0, 1, 0), strides=(2, 1), count_include_pad=1))),
    Kind("half a pixel off", other_pixels(HALVES, coordinate_transformation_mode="asymmetric"), (RESIZED,)),
    Kind("corners aligned that are not", other_pixels(HALVES, coordinate_transformation_mode="align_corners"),
         (RESIZED,)),
    Kind("pieces of a concatenation swapped", split_swapped, (
        case("Concat", X23, X33[:2], axis=0), case("Concat", X23, W[:2], axis=1))),
    Kind("a permutation that is not inverted", not_inverted, (
        case("Transpose", arr(2, 2, 2), perm=(1, 2, 0)), case("Transpose", arr(3, 3, 3), perm=(2, 0, 1)))),
    Kind("duplicates of a gather overwritten", duplicates_overwritten,
         (case("Gather", arr(4, 2), np.array([1, 1, 3]), axis=0),)),
    Kind("copies of a tile not summed", first_copy, (case("Tile", X23, np.array([2, 3])),)),
    Kind("second output ignored", first_output_alone,
         (case("Split", arr(4, 3), np.array([1, 3]), n_outputs=2, axis=0),)),
    Kind("a loop's gradient dropped", lost(instead("Loop"), 2), (case("Loop", np.array(3), None, arr(3), body=BODY),)),
    Kind("a running sum in the same direction", same_direction, (
        case("CumSum", arr(2, 4), np.array(1)), case("CumSum", arr(2, 4), np.array(0), reverse=1, exclusive=1))),
    Kind("entries of a slice reversed", not_flipped_indices, (
        case("Slice", arr(4), np.array([3]), np.array([-5]), np.array([0]), np.array([-1])),)),
    Kind("another leak", other_leak, (case("LeakyRelu", arr(6), alpha=0.1),)),
    Kind("no leak", no_leak, (case("LeakyRelu", arr(6), alpha=0.01),)),
    Kind("a clip that lets everything through", straight_through, (case("Clip", arr(6), -0.5, 0.5),)),
    Kind("a relu that lets everything through", straight_through, (case("Relu", arr(6)),)),
    Kind("a step that lets everything through", straight_through, (case("Floor", arr(6)),)),
    Kind("a rounding that lets everything through", straight_through, (case("Round", arr(6)),)),
    Kind("a tanh with a term missing", lambda ct, y, x: (ct * (1 - y),), (case("Tanh", arr(4)),)),
    Kind("a sigmoid with a factor missing", lambda ct, y, x: (ct * y,), (case("Sigmoid", arr(4)),)),
    Kind("an inner derivative forgotten", lambda ct, y, x: (ct * 0.5,), (case("Sqrt", arr(4, low=0.5, high=2.0)),)),
    Kind("a product by division", lambda ct, y, x, **m: (sym.expand(ct * y, x.shape),), (case("ReduceProd", arr(4)),)),
    Kind("a norm by its square", lambda ct, y, x, **m: (ct * x,), (case("ReduceL2", arr(4)),)),
    Kind("cofactors not transposed", lambda ct, y, x: (sym.swap(rule("Det")(ct, y, x)[0]),), (case("Det", W),)),
    Kind("a where with its condition turned", condition_turned,
         (case("Where", np.array([True, False, True, False]), arr(4), arr(4, seed=5)),)),
    Kind("a maximum to both", lambda ct, y, *xs: [ct for _ in xs], (case("Max", arr(4), arr(4, seed=6)),)),
    Kind("the reset of a GRU elsewhere", instead("GRU", linear_before_reset=1), (
        case("GRU", arr(2, 2, 3), arr(1, 6, 3), arr(1, 6, 2), arr(1, 12), None, arr(1, 2, 2), hidden_size=2),)),
]  # fmt: skip
