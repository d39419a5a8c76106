"""The Rust declarations are those of leafpack.h: made from it, and of the layout that C gives them."""

import os
import pathlib
import re
import subprocess

import generate
import pytest

RUNFILES = pathlib.Path(os.environ["RUNFILES_DIR"])
HERE = RUNFILES / "leafpack" / "bindings" / "rust"
HEADER = RUNFILES / "leafpack" / "bindings" / "c" / "leafpack.h"
DLPACK = RUNFILES / "libtorch" / "site" / "torch" / "include" / "ATen"
RUSTC = RUNFILES / "local_rust" / "bin" / "rustc"
SOURCES = HERE / "leafpack-sys" / "src"


def structs():
    """Name to names of members, of every struct in the Rust sources."""
    found = {}
    for source in ("bindings.rs", "lib.rs"):
        text = (SOURCES / source).read_text()
        for name, body in re.findall(r"pub struct (\w+) \{(.*?)\n\}", text, re.DOTALL):
            members = re.findall(r"^    pub (?:r#)?(\w+):", body, re.MULTILINE)
            if members:
                found[name] = members
    return found


def constants():
    return re.findall(r"^pub const (\w+):", (SOURCES / "bindings.rs").read_text(), re.MULTILINE)


def run(*command):
    done = subprocess.run([str(word) for word in command], text=True, stdout=subprocess.PIPE, check=True)
    return done.stdout


def c_layout(tmp_path):
    lines = [
        "#include <stdio.h>",
        "#include <stddef.h>",
        '#include "leafpack.h"',
        "#include <dlpack.h>",
        "int main(void) {",
    ]
    for name, members in structs().items():
        lines.append(f'  printf("{name} %zu %zu\\n", sizeof({name}), _Alignof({name}));')
        for member in members:
            where = f"offsetof({name}, {member}), sizeof((({name}*)0)->{member})"
            lines.append(f'  printf("{name}.{member} %zu %zu\\n", {where});')
    lines += [f'  printf("{name} %lld\\n", (long long){name});' for name in constants()]
    source = tmp_path / "layout.c"
    source.write_text("\n".join([*lines, "  return 0;", "}", ""]))
    run("cc", "-std=c11", f"-I{HEADER.parent}", f"-I{DLPACK}", source, "-o", tmp_path / "c_layout")
    return run(tmp_path / "c_layout")


def rust_layout(tmp_path):
    lines = [
        "use leafpack_sys::*;",
        "use std::mem::{align_of, size_of, size_of_val, MaybeUninit};",
        "fn main() {",
    ]
    for name, members in structs().items():
        lines.append(f'    println!("{name} {{}} {{}}", size_of::<{name}>(), align_of::<{name}>());')
        lines.append(f"    let value: {name} = unsafe {{ MaybeUninit::zeroed().assume_init() }};")
        for member in members:
            field = f"value.{generate.identifier(member)}"
            offset = f"(&{field} as *const _ as usize) - (&value as *const _ as usize)"
            lines.append(f'    println!("{name}.{member} {{}} {{}}", {offset}, size_of_val(&{field}));')
    lines += [f'    println!("{name} {{}}", {name} as i64);' for name in constants()]
    source = tmp_path / "layout.rs"
    (tmp_path / "libleafpack.so").write_text("/* an empty linker script */\n")
    source.write_text("\n".join([*lines, "}", ""]))
    rlib = f"--extern=leafpack_sys={HERE}/libleafpack_sys.rlib"
    # The library is not called, so it need not be there.
    run(RUSTC, "--edition=2021", rlib, f"-Lnative={tmp_path}", source, "-o", tmp_path / "rust_layout")
    return run(tmp_path / "rust_layout")


def test_the_declarations_are_those_that_the_generator_makes():
    made = generate.generate(HEADER.read_text())
    assert (SOURCES / "bindings.rs").read_text() == made, (
        "run: python3 bindings/rust/generate.py bindings/c/leafpack.h > bindings/rust/leafpack-sys/src/bindings.rs"
    )


def test_every_function_of_the_header_is_declared():
    in_c = set(re.findall(r"\b(leafpack_\w+)\((?!\*)", re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.DOTALL)))
    in_c -= {name for name in in_c if name in structs()}
    in_rust = set(re.findall(r"pub fn (\w+)\(", (SOURCES / "bindings.rs").read_text()))
    assert len(in_rust) > 100
    assert in_c == in_rust


def test_structs_and_constants_are_as_in_c(tmp_path):
    in_c, in_rust = c_layout(tmp_path), rust_layout(tmp_path)
    assert in_c.count("\n") > 150
    assert in_c == in_rust


@pytest.mark.parametrize(
    "text, rust",
    [
        ("const leafpack_tree* const*", "*const *const leafpack_tree"),
        ("leafpack_group**", "*mut *mut leafpack_group"),
        ("const char**", "*mut *const c_char"),
        ("struct DLManagedTensor*", "*mut DLManagedTensor"),
        ("const void* const*", "*const *const c_void"),
        ("size_t", "usize"),
    ],
)
def test_types(text, rust):
    assert generate.rust_type(text) == rust


def test_c_that_is_not_known_is_refused():
    with pytest.raises(generate.HeaderError, match="not understood"):
        generate.generate("static int leafpack_x;\n")
