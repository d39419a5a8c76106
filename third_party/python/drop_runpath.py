"""drop_runpath.py IN OUT: copies a shared library without the paths it looks for libraries in.

Bazel's C++ rules always write such paths (DT_RPATH, DT_RUNPATH), into its own output folders; an
extension module must not have them. Entries of the dynamic section are removed by moving those
behind them up; sizes and offsets stay. ELF64, little endian.
"""

import struct
import sys

PT_DYNAMIC = 2
DT_NULL, DT_RPATH, DT_RUNPATH = 0, 15, 29
ENTRY = struct.Struct("<qQ")


def dynamic_section(elf):
    """Offset and size in bytes of the dynamic section of `elf`, a bytearray."""
    if elf[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not an ELF file of 64 bits, little endian")
    (table,) = struct.unpack_from("<Q", elf, 32)
    size, count = struct.unpack_from("<HH", elf, 54)
    for index in range(count):
        header = table + index * size
        (kind,) = struct.unpack_from("<I", elf, header)
        if kind == PT_DYNAMIC:
            (offset,) = struct.unpack_from("<Q", elf, header + 8)
            (length,) = struct.unpack_from("<Q", elf, header + 32)
            return offset, length
    raise ValueError("no dynamic section")


def drop_runpath(elf):
    offset, length = dynamic_section(elf)
    entries = list(ENTRY.iter_unpack(elf[offset : offset + length]))
    kept = [entry for entry in entries if entry[0] not in (DT_RPATH, DT_RUNPATH)]
    kept += [(DT_NULL, 0)] * (len(entries) - len(kept))
    elf[offset : offset + length] = b"".join(ENTRY.pack(*entry) for entry in kept)


def main():
    source, target = sys.argv[1:]
    with open(source, "rb") as file:
        elf = bytearray(file.read())
    drop_runpath(elf)
    with open(target, "wb") as file:
        file.write(elf)


if __name__ == "__main__":
    main()
