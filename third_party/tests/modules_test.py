"""MODULE mode takes the same pins as WORKSPACE mode: MODULE.bazel beside third_party/repositories.bzl.

Both are read as Python, which what they use of Starlark is, with functions that note how they are called.
The templates in .bcr are looked at too.
"""

import json
import pathlib

import pytest

# Its name among the runfiles differs between the modes.
ROOT = pathlib.Path(__file__).parents[2]


def run(path, **given):
    """Runs a Starlark file; what it loads are functions that note their call in the list `called`."""
    names = dict(given, called=[])

    def load(_, *same, **renamed):
        for name in (*same, *renamed):
            names.setdefault(name, lambda *_, name=name, **__: names["called"].append(name))

    names["load"] = load
    exec(compile((ROOT / path).read_text(), path, "exec"), names)
    return names


class Module:
    """What MODULE.bazel says."""

    def __init__(self):
        self.module = {}
        self.dependencies = {}
        self.extensions = []
        self.used = []
        run(
            "MODULE.bazel",
            module=lambda **attributes: self.module.update(attributes),
            bazel_dep=lambda name, version: self.dependencies.update({name: version}),
            use_extension=lambda *names: self.extensions.append(names),
            use_repo=lambda _, *names: self.used.extend(names),
        )


@pytest.fixture(scope="module")
def said():
    return Module()


def declared():
    """The repositories that third_party/repositories.bzl declares in both modes, by name."""
    names = []

    class Noting(list):
        # Asked for each name before it is declared.
        def __contains__(self, name):
            names.append(name)
            return False

    file = run("third_party/repositories.bzl")
    file["declare_pins"](Noting())
    assert len(file["called"]) == len(names)
    return names


def test_every_pin_is_used(said):
    assert said.extensions == [("//third_party:extensions.bzl", "leafpack")]
    assert said.used == sorted(declared())


def test_rule_sets_are_modules_of_the_pinned_versions(said):
    archives = {}
    rules = run(
        "third_party/bazel_rules/workspace.bzl",
        http_archive=lambda name, urls, **_: archives.update({name: urls}),
    )
    rules["repositories"]({})
    assert said.dependencies.keys() == archives.keys()
    for name, version in said.dependencies.items():
        assert all(f"/{version}/" in url for url in archives[name]), (name, version, archives[name])


def test_version(said):
    assert said.module["name"] == "leafpack"
    assert said.module["version"] == run("version.bzl")["VERSION"]


def test_templates_for_the_registry():
    metadata = json.loads((ROOT / ".bcr/metadata.template.json").read_text())
    # Publishing fills these in.
    assert metadata["versions"] == [] and metadata["yanked_versions"] == {}
    assert metadata["homepage"] and metadata["repository"] and all(m["github"] for m in metadata["maintainers"])
    source = json.loads((ROOT / ".bcr/source.template.json").read_text())
    assert source["integrity"] == ""
    # A release archive begins with the folder that is stripped, and is of the version's tag.
    assert source["url"].endswith(f"/v{{VERSION}}/{source['strip_prefix']}.tar.gz")
