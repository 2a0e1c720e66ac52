"""Models as graphs: import, normal form, shapes, reference values, passes.  The only home of onnx and onnx-ir."""
