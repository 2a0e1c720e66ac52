"""The second IR: what a kernel computes, apart from how."""
