"""A package outside of kvcore that is compiled against its .pxd files."""
