"""Reads text in pictures with three compiled networks, to show Tilewright on a whole task.

Picture -> lines of text, and how long each stage took in Tilewright and in ONNX Runtime.
Not here: anything of the compiler; the demo uses what ``import tilewright`` gives to everyone.
"""
