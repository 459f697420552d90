"""Models with their derivatives as ONNX files: right for every input of the declared shapes."""
