"""Machine code on a CPU: loading, memory, threads."""
