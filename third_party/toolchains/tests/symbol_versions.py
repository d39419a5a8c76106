"""The versions of other libraries' symbols that an ELF file needs, as `readelf --version-info` shows them."""

import struct

SHT_GNU_VERNEED = 0x6FFFFFFE

# What a machine must have for what is shipped, as docs/toolchains.md says. torch's own wheel needs GLIBC 2.28,
# GLIBCXX 3.4.22 and CXXABI 1.3.11; std::filesystem is of GLIBCXX 3.4.26.
CEILING = {
    "CXXABI": (1, 3, 11),
    "GCC": (4, 2, 0),
    "GLIBC": (2, 28),
    "GLIBCXX": (3, 4, 26),
}


def _text(data, at):
    return data[at : data.index(b"\0", at)].decode()


def needed(elf):
    """Set of pairs: the library's name and the version, ("libc.so.6", "GLIBC_2.17"). ELF64, little endian."""
    if elf[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not an ELF file of 64 bits, little endian")
    (table,) = struct.unpack_from("<Q", elf, 40)
    size, count = struct.unpack_from("<HH", elf, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", elf, table + i * size) for i in range(count)]
    result = set()
    for section in sections:
        if section[1] != SHT_GNU_VERNEED:
            continue
        names = sections[section[6]][4]
        entry = section[4]
        while True:
            _, parts, file, first, following = struct.unpack_from("<HHIII", elf, entry)
            part = entry + first
            for _ in range(parts):
                _, _, _, name, step = struct.unpack_from("<IHHII", elf, part)
                result.add((_text(elf, names + file), _text(elf, names + name)))
                part += step
            if following == 0:
                break
            entry += following
    return result


def highest(versions):
    """The highest version of each family: {"GLIBC": (2, 17)}; names without a number are left out."""
    result = {}
    for _, version in versions:
        family, _, number = version.rpartition("_")
        if number.replace(".", "").isdigit():
            result[family] = max(result.get(family, ()), tuple(int(part) for part in number.split(".")))
    return result


def above_ceiling(versions):
    """Families of `versions` that the ceiling does not know or is below of, each with its highest version."""
    return {
        family: version
        for family, version in highest(versions).items()
        if family not in CEILING or version > CEILING[family]
    }
