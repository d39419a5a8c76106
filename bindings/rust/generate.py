"""generate.py LEAFPACK_H: prints leafpack-sys/src/bindings.rs, the Rust declarations of the C header.

    python3 bindings/rust/generate.py bindings/c/leafpack.h > bindings/rust/leafpack-sys/src/bindings.rs

It knows the C that the header uses and refuses anything else.
"""

import re
import sys

HEAD = """\
// Declarations of leafpack.h. Made by bindings/rust/generate.py; do not edit.
"""

PRIMITIVES = {
    "char": "c_char",
    "double": "f64",
    "int32_t": "i32",
    "int64_t": "i64",
    "size_t": "usize",
    "uint32_t": "u32",
    "uint64_t": "u64",
    "void": "c_void",
}

NUMBERS = {"INT32_MIN": ("i32", "i32::MIN"), "SIZE_MAX": ("usize", "usize::MAX")}

KEYWORDS = {"type", "in", "ref", "move", "fn", "impl", "match", "loop", "use", "where"}


class HeaderError(Exception):
    """C that the generator does not know."""


def identifier(name):
    return f"r#{name}" if name in KEYWORDS else name


def rust_type(text):
    """`const leafpack_tree* const*` as Rust has it."""
    words = re.findall(r"\w+|\*", text)
    words = [word for word in words if word != "struct"]
    constant = words[0] == "const"
    if constant:
        words = words[1:]
    name, rest = words[0], words[1:]
    if rest[:1] == ["const"]:
        constant, rest = True, rest[1:]
    result = PRIMITIVES.get(name, name)
    if not re.match(r"^\w+$", name):
        raise HeaderError(f"no type: {text}")
    while rest:
        if rest.pop(0) != "*":
            raise HeaderError(f"no type: {text}")
        result = f"{'*const' if constant else '*mut'} {result}"
        constant = rest[:1] == ["const"]
        if constant:
            rest.pop(0)
    return result


def split_parameters(text):
    """Splits at commas outside of parentheses."""
    parts, depth, part = [], 0, ""
    for char in text:
        depth += (char == "(") - (char == ")")
        if char == "," and depth == 0:
            parts.append(part)
            part = ""
        else:
            part += char
    return [part.strip() for part in parts + [part] if part.strip() not in ("", "void")]


def declaration(text):
    """Name and Rust type of a parameter or member."""
    pointer = re.fullmatch(r"(.*?)\(\*(\w+)\)\((.*)\)", text, re.DOTALL)
    if pointer:
        result, name, parameters = pointer.groups()
        rust = f"Option<unsafe extern \"C\" fn({parameter_list(parameters)}){arrow(result)}>"
        return name, rust
    match = re.fullmatch(r"(.*?[\s*])(\w+)", text, re.DOTALL)
    if not match:
        raise HeaderError(f"no declaration: {text}")
    return match.group(2), rust_type(match.group(1))


def arrow(result):
    return "" if result.strip() == "void" else f" -> {rust_type(result)}"


def parameter_list(text):
    pairs = [declaration(part) for part in split_parameters(text)]
    return ", ".join(f"{identifier(name)}: {rust}" for name, rust in pairs)


def members(body):
    """The members of a struct; `double a, b;` is two."""
    for statement in filter(None, (part.strip() for part in body.split(";"))):
        first, *others = split_parameters(statement) if "(" not in statement else [statement]
        name, rust = declaration(first)
        yield name, rust
        for other in others:
            yield other, rust


def generate(header):
    text = re.sub(r"/\*.*?\*/", " ", header, flags=re.DOTALL).replace("\\\n", " ")
    out = []

    for name, value in re.findall(r"^#define (LEAFPACK_\w+) (\S.*)$", text, re.MULTILINE):
        value = value.strip().strip("()")
        if re.fullmatch(r"-?\d+", value):
            out.append(f"pub const {name}: i32 = {value};")
        elif value in NUMBERS:
            out.append("pub const {}: {} = {};".format(name, *NUMBERS[value]))
        elif not re.search(r"_INIT$|^LEAFPACK_(API|CALL|MUST_USE)$", name):
            raise HeaderError(f"no constant: {name} {value}")
    text = re.sub(r"^#.*$", "", text, flags=re.MULTILINE)
    text = re.sub(r'extern "C" \{', "", text)

    for body in re.findall(r"\benum \{(.*?)\};", text, re.DOTALL):
        out.append("")
        for item in filter(None, (part.strip() for part in body.split(","))):
            name, value = re.fullmatch(r"(\w+) = (-?\d+)", item).groups()
            out.append(f"pub const {name}: i32 = {value};")
    text = re.sub(r"\benum \{.*?\};", "", text, flags=re.DOTALL)

    out.append("")
    for name in re.findall(r"typedef struct (\w+) \1;", text):
        out.append(f"#[repr(C)]\npub struct {name} {{\n    _opaque: [u8; 0],\n}}")
    text = re.sub(r"typedef struct (\w+) \1;", "", text)
    text = re.sub(r"^struct DL\w+;", "", text, flags=re.MULTILINE)  # lib.rs has DLPack's own

    for name, body in re.findall(r"typedef struct (\w+) \{(.*?)\} \1;", text, re.DOTALL):
        out.append(f"\n#[repr(C)]\n#[derive(Clone, Copy)]\npub struct {name} {{")
        out += [f"    pub {identifier(member)}: {rust}," for member, rust in members(body)]
        out.append("}")
    text = re.sub(r"typedef struct (\w+) \{.*?\} \1;", "", text, flags=re.DOTALL)

    out.append('\nextern "C" {')
    text = text.replace("LEAFPACK_CALL", "LEAFPACK_API leafpack_error*")
    pattern = r"LEAFPACK_API\s+([\w\s]+?[\s*]+)(leafpack_\w+)\(((?:[^()]|\([^()]*\))*)\);"
    for result, name, parameters in re.findall(pattern, text):
        out.append(f"    pub fn {name}({parameter_list(parameters)}){arrow(result)};")
    out.append("}")
    left = re.sub(pattern, "", text).strip().strip("}").strip()
    if left:
        raise HeaderError(f"not understood: {left[:200]}")
    return HEAD + "\n".join(out) + "\n"


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        sys.stdout.write(generate(file.read()))
