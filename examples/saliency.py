"""Explains an image: which pixels a score depends on, by the gradient of that score alone.

$ python examples/saliency.py model
$ gradcheck grad image.onnx --x image --y 'scores[0,1]' -o saliency.onnx
saliency.onnx  12 nodes, 9 of them added
  output  image_grad [1,1,8,8] float32
  run     onnxruntime.InferenceSession('saliency.onnx').run(['image_grad'], {'image': ...})
$ python examples/saliency.py
the image   where the score of class 1 comes from
........    ........
........    ........
.....#..    .....#..
....###.    ....###.
.....#..    .....#..
.#......    ........
.#......    ........
.#......    ........
"""

import sys

import numpy as np

CROSS = np.array([[-1.0, 1, -1], [1, 1, 1], [-1, 1, -1]], np.float32)  # what class 1 looks for
LINE = np.array([[-1.0, 1, -1], [-1, 1, -1], [-1, 1, -1]], np.float32)  # and class 0


def model() -> None:
    """Writes image.onnx: two filters, each followed by the score of the place that it fits best, or nearly."""
    import onnx

    text = """<ir_version: 8, opset_import: ["" : 18]> net (float[1,1,8,8] image) => (float[1,2] scores)
        <float[2] bias = {-3.0, -4.0}, int64[2] pixels = {2, 3}> {
            fits = Conv<pads = [1,1,1,1]>(image, filters, bias)
            found = Relu(fits)
            scores = ReduceSum<keepdims = 0>(found, pixels)
        }"""
    made = onnx.parser.parse_model(text)
    made.graph.initializer.append(onnx.numpy_helper.from_array(np.stack([LINE, CROSS])[:, None], "filters"))
    onnx.save(made, "image.onnx")


def picture() -> np.ndarray:
    """A cross and a line."""
    image = np.zeros((8, 8), np.float32)
    image[2:5, 5] = image[3, 4:7] = 1
    image[5:8, 1] = 1
    return image


def drawn(values: np.ndarray) -> list[str]:
    return ["".join("#" if value else "." for value in row) for row in values]


def explained() -> None:
    """Prints the image beside the pixels that the score of class 1 depends on."""
    import onnxruntime

    session = onnxruntime.InferenceSession("saliency.onnx")
    (slope,) = session.run(["image_grad"], {"image": picture()[None, None]})
    print("the image   where the score of class 1 comes from")
    for left, right in zip(drawn(picture()), drawn(slope[0, 0] > 0), strict=True):
        print(f"{left}    {right}")


if __name__ == "__main__":
    model() if sys.argv[1:] == ["model"] else explained()
