"""CUDA back end: kernels to CUDA C++ to machine code, without a GPU and without torch."""
