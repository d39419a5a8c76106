"""A wheel is the same bytes whatever the order of its inputs, and its RECORD is right."""

import base64
import csv
import hashlib
import io
import zipfile

import pytest
import wheel_builder


def parameters(folder, version="1.2.3"):
    texts = {
        "package/__init__.py": "from package._version import __version__\n",
        "package/_version.py": f'__version__ = "{version}"\n',
        "package/_C.so": "not really\n",
        "README.md": "# package\n\nGrüße\n",
        "LICENSE": "as you like\n",
    }
    paths = {}
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        paths[name] = str(path)
    return {
        "classifiers": ["Programming Language :: Python :: 3"],
        "distribution": "package",
        "files": {name: path for name, path in paths.items() if name.startswith("package/")},
        "license_expression": "MIT",
        "licenses": {"LICENSE": paths["LICENSE"]},
        "python_requires": ">=3.11",
        "readme": paths["README.md"],
        "requires": ["torch==2.13.*"],
        "summary": "A package.",
        "tag": "cp311-cp311-linux_x86_64",
        "version": "1.2.3",
    }


def test_order_of_inputs_does_not_matter(tmp_path):
    forward = parameters(tmp_path)
    backward = dict(forward, files=dict(reversed(forward["files"].items())))
    wheel_builder.write_wheel(forward, tmp_path / "a.whl")
    wheel_builder.write_wheel(backward, tmp_path / "b.whl")
    assert (tmp_path / "a.whl").read_bytes() == (tmp_path / "b.whl").read_bytes()


def test_record_names_every_file_with_its_hash_and_size(tmp_path):
    wheel_builder.write_wheel(parameters(tmp_path), tmp_path / "a.whl")
    with zipfile.ZipFile(tmp_path / "a.whl") as wheel:
        contents = {name: wheel.read(name) for name in wheel.namelist()}
    assert list(contents)[-1] == "package-1.2.3.dist-info/RECORD"
    record = list(csv.reader(io.StringIO(contents.pop(list(contents)[-1]).decode())))
    assert record.pop() == ["package-1.2.3.dist-info/RECORD", "", ""]
    assert [row[0] for row in record] == list(contents)
    for name, digest, size in record:
        kind, value = digest.split("=", 1)
        expected = base64.urlsafe_b64encode(hashlib.sha256(contents[name]).digest()).rstrip(b"=")
        assert (kind, value, int(size)) == ("sha256", expected.decode(), len(contents[name]))


def test_programs_are_entry_points(tmp_path):
    given = parameters(tmp_path)
    wheel_builder.write_wheel(given, tmp_path / "a.whl")
    given["console_scripts"] = {"b": "package:two", "a": "package:one"}
    wheel_builder.write_wheel(given, tmp_path / "b.whl")
    name = "package-1.2.3.dist-info/entry_points.txt"
    with zipfile.ZipFile(tmp_path / "a.whl") as wheel:
        assert name not in wheel.namelist()
    with zipfile.ZipFile(tmp_path / "b.whl") as wheel:
        assert wheel.read(name).decode() == "[console_scripts]\na = package:one\nb = package:two\n"


def test_another_version_in_the_package_is_refused(tmp_path):
    with pytest.raises(SystemExit, match="says version 9.9.9, the wheel is 1.2.3"):
        wheel_builder.write_wheel(parameters(tmp_path, version="9.9.9"), tmp_path / "a.whl")
