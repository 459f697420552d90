"""Exports a small PyTorch classifier, and the gradients that PyTorch computes of it.

python export.py          # writes classifier.onnx, and gradients.npz
python export.py mended   # the same with the backward pass mended: mended.npz
"""

import sys

import numpy as np
import torch
from torch.nn import Linear, Module
from torch.nn.functional import cross_entropy


class Swish(torch.autograd.Function):
    """x * sigmoid(x), with a backward pass of its own; the first version forgets a term."""

    mended = "mended" in sys.argv

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return dy * (s + x * s * (1 - s)) if Swish.mended else dy * s


class Classifier(Module):
    """Two layers with Swish between them: what comes out of Swish, the scores, and their loss."""

    def __init__(self):
        super().__init__()
        self.hidden, self.scores = Linear(4, 8), Linear(8, 3)

    def forward(self, features, classes):
        active = Swish.apply(self.hidden(features))
        scores = self.scores(active)
        return active, scores, cross_entropy(scores, classes)


if __name__ == "__main__":
    torch.manual_seed(0)
    net, features, classes = Classifier().eval(), torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])
    batch = torch.export.Dim("batch", min=2, max=1024)
    torch.onnx.export(
        net, (features, classes), "classifier.onnx", dynamo=True, external_data=False, verbose=False,
        input_names=["features", "classes"], output_names=["active", "scores", "loss"],
        dynamic_shapes=({0: batch}, {0: batch}),
    )  # fmt: skip

    exact, x = net.double(), features.double().requires_grad_()  # no rounding of float32 in the gradients
    active, _, loss = exact(x, classes)
    by_features, by_active = torch.autograd.grad(loss, (x, active))
    np.savez(
        "mended.npz" if Swish.mended else "gradients.npz",
        features=x.detach(), classes=classes, by_features=by_features, by_active=by_active,
    )  # fmt: skip
