"""Small models with gradients in them, written out by hand."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.parser

import gradcheck_cli as gc

HEAD = '<ir_version: 9, opset_import: ["" : 18, "ai.onnx.preview.training" : 1]>\n'
W = "float[3,4] W = {0.1,0.2,-0.3,0.4,0.5,-0.6,0.7,0.8,0.9,-1.0,1.1,1.2}"
FORWARD = """
 h = MatMul (x, W)
 a = Tanh (h)
 s = Mul (a, a)
 loss = ReduceSum <keepdims=0> (s)"""
BACKWARD = """
 two = Constant <value_float=2.0> ()
 one = Constant <value_float=1.0> ()
 a_grad = Mul (two, a)
 d = Sub (one, s)
 h_grad = Mul (a_grad, d)
 Wt = Transpose <perm=[1,0]> (W)
 x_grad = MatMul (h_grad, Wt)"""
BROKEN = BACKWARD.replace("Sub (one, s)", "Sub (one, a)")  # 1 - tanh instead of 1 - tanh^2


def write(path: Path, signature: str, weights: str, body: str) -> Path:
    """A model in ONNX's text syntax as a file."""
    onnx.save(onnx.parser.parse_model(f"{HEAD}g {signature}\n<{weights}>\n{{{body}\n}}"), path)
    return path


def tanh(folder: Path, backward: str = BACKWARD, outputs: str = "float[2,3] x_grad") -> gc.Model:
    """sum(tanh(x W)^2) with its gradient by x, or what else is written for that."""
    return gc.load(write(folder / "tanh.onnx", f"(float[2,3] x) => (float loss, {outputs})", W, FORWARD + backward))


def plain(folder: Path) -> gc.Model:
    """The same without a gradient."""
    return gc.load(write(folder / "plain.onnx", "(float[2,3] x) => (float loss)", W, FORWARD))
