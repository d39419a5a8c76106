"""drop_runpath.py IN OUT [LIBRARY...]: copies a shared library without the paths it looks for libraries in.

Bazel's C++ rules always write such paths (DT_RPATH, DT_RUNPATH), into its own output folders; what is
used elsewhere must not have them. Nor is each LIBRARY named as needed (DT_NEEDED) any more. Entries of
the dynamic section are removed by moving those behind them up; sizes and offsets stay. ELF64, little
endian.
"""

import struct
import sys

PT_LOAD, PT_DYNAMIC = 1, 2
DT_NULL, DT_NEEDED, DT_STRTAB, DT_RPATH, DT_RUNPATH = 0, 1, 5, 15, 29
ENTRY = struct.Struct("<qQ")


def segments(elf):
    """Kind, offset, address and size in bytes of each segment of `elf`, a bytearray."""
    if elf[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not an ELF file of 64 bits, little endian")
    (table,) = struct.unpack_from("<Q", elf, 32)
    size, count = struct.unpack_from("<HH", elf, 54)
    for index in range(count):
        header = table + index * size
        (kind,) = struct.unpack_from("<I", elf, header)
        offset, address = struct.unpack_from("<QQ", elf, header + 8)
        (length,) = struct.unpack_from("<Q", elf, header + 32)
        yield kind, offset, address, length


def text_at(elf, address):
    """The text that ends with a zero byte at an address."""
    for kind, offset, start, length in segments(elf):
        if kind == PT_LOAD and start <= address < start + length:
            first = address - start + offset
            return bytes(elf[first : elf.index(0, first)]).decode()
    raise ValueError(f"no segment holds the address {address}")


def drop_runpath(elf, libraries=()):
    dynamic = [(offset, length) for kind, offset, _, length in segments(elf) if kind == PT_DYNAMIC]
    if not dynamic:
        raise ValueError("no dynamic section")
    ((offset, length),) = dynamic
    entries = list(ENTRY.iter_unpack(elf[offset : offset + length]))
    (texts,) = [value for tag, value in entries if tag == DT_STRTAB]

    def stays(tag, value):
        if tag == DT_NEEDED:
            return text_at(elf, texts + value) not in libraries
        return tag not in (DT_RPATH, DT_RUNPATH)

    kept = [entry for entry in entries if stays(*entry)]
    kept += [(DT_NULL, 0)] * (len(entries) - len(kept))
    elf[offset : offset + length] = b"".join(ENTRY.pack(*entry) for entry in kept)


def main():
    source, target, *libraries = sys.argv[1:]
    with open(source, "rb") as file:
        elf = bytearray(file.read())
    drop_runpath(elf, libraries)
    with open(target, "wb") as file:
        file.write(elf)


if __name__ == "__main__":
    main()
