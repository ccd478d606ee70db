"""Damage to a store's files."""
import os


def flip_in(file, offset, bit=0):
    """A bit of the byte there, of a file that is open for reading and writing."""
    file.seek(offset, os.SEEK_END if offset < 0 else os.SEEK_SET)
    byte = file.read(1)[0]
    file.seek(-1, os.SEEK_CUR)
    file.write(bytes([byte ^ 1 << bit]))


def flip(path, *offsets, bit=0):
    """A bit of the byte at each offset; below zero: from the end. The file keeps its size at every
    moment, as a server that uses the directory takes files of another size away."""
    with open(path, "r+b") as file:
        for offset in offsets:
            flip_in(file, offset, bit)
