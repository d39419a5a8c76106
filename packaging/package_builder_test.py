"""The tar's builder: which headers go in, what is refused, and that its bytes follow from its inputs."""

import tarfile

import package_builder
import pytest


def contents(**files):
    return {name.replace("__", "/") + ".h": (lambda text=text: text.encode()) for name, text in files.items()}


def test_headers_that_are_included_go_in_whichever_way_they_are_named():
    headers = contents(
        a__public='#include "a/direct.h"\n#include <vector>\n#  include <b/angle.h>\n',
        a__direct='#include "beside.h"\n',
        a__beside="",
        b__angle='#ifdef X\n#include "b/conditional.h"\n#endif\n',
        b__conditional='#include "a/public.h"\n',
        b__unused="",
    )
    found = package_builder.closure(["a/public.h"], headers, {})
    assert sorted(found) == ["a/beside.h", "a/direct.h", "a/public.h", "b/angle.h", "b/conditional.h"]


def test_a_header_of_a_hidden_library_is_an_error():
    headers = contents(a__public='#include "a/direct.h"\n', a__direct='#include "gloo/context.h"\n')
    with pytest.raises(package_builder.PackageError, match="a/direct.h includes gloo/context.h of @gloo"):
        package_builder.closure(["a/public.h"], headers, {"gloo/context.h": "gloo"})


def test_templates():
    assert package_builder.expand("v@VERSION@ a@b.c", {"VERSION": "1.2"}) == "v1.2 a@b.c"
    with pytest.raises(package_builder.PackageError, match="no value for @OTHER@"):
        package_builder.expand("@OTHER@", {"VERSION": "1.2"})


def test_the_same_files_make_the_same_bytes_in_any_order(tmp_path):
    files = {"b": (b"two", 0o755), "a": (b"one", 0o644), "link": "a"}
    package_builder.write_tar("root", files, tmp_path / "1.tar")
    package_builder.write_tar("root", dict(reversed(files.items())), tmp_path / "2.tar")
    assert (tmp_path / "1.tar").read_bytes() == (tmp_path / "2.tar").read_bytes()
    with tarfile.open(tmp_path / "1.tar") as tar:
        assert [(member.name, member.mode) for member in tar] == [
            ("root/a", 0o644),
            ("root/b", 0o755),
            ("root/link", 0o777),
        ]
