"""Every public name of tensordict.TensorDict is one of ours, or docs/tensordict.md says why not."""

import pathlib
import re

import tensordict

import leafpack


def public(cls):
    return {name for name in dir(cls) if not name.startswith("_")}


def listed():
    """The names in the first column of the list's table, with the reasons in the second."""
    page = (pathlib.Path(__file__).parents[3] / "docs/tensordict.md").read_text(encoding="utf-8")
    section = page.partition("## Names of tensordict that leafpack lacks\n")[2].partition("\n## ")[0]
    result = {}
    for line in section.splitlines():
        cells = re.fullmatch(r"\| (`.*) \| (.*) \|", line)
        if cells:
            for name in re.findall(r"`(\w+)`", cells[1]):
                assert name not in result, f"{name} is listed twice"
                result[name] = cells[2].strip()
    return result


def test_no_name_is_forgotten():
    missing = public(tensordict.TensorDict) - public(leafpack.TensorDict)
    assert missing == set(listed())
    assert len(missing) < 50 and all(listed().values())
