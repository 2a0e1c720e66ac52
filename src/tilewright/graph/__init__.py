"""Models as graphs: import, normal form, shapes, reference, passes.  The only home of ONNX."""
