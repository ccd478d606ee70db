"""Damage to a store's files."""


def flip(path, *offsets, bit=0):
    """A bit of the byte at each offset; below zero: from the end. The file keeps its size at every
    moment, as a server that uses the directory takes files of another size away."""
    with open(path, "r+b") as file:
        for offset in offsets:
            file.seek(offset, 2 if offset < 0 else 0)
            byte = file.read(1)[0]
            file.seek(-1, 1)
            file.write(bytes([byte ^ 1 << bit]))
