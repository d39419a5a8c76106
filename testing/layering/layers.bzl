"""The layers of the repository, and a test that no library uses a layer that it must not see.

    third_party <- tensordict <- tensordict/bucket <- distributed/tree <- distributed <- bindings/*
    third_party <- distributed/core <- distributed/{store, backends/*} <- distributed
    distributed/core <- distributed/tree <- distributed/p2p <- distributed
    distributed/core <- distributed/mailbox <- distributed/{p2p, backends/*}
    distributed/core <- distributed/messages <- distributed/backends/*
    bindings/c <- bindings/rust
    distributed/launch stands alone

An arrow points from the layer that is used to the layer that uses it, and a layer may use whatever
lies below it. Visibility keeps an edge from being built; this test keeps visibility from being
widened without a thought: the table below has to change as well.
"""

# Layer to the layers right below it. Everything may use third_party.
_BELOW = {
    "tensordict": [],
    "tensordict/bucket": ["tensordict"],
    "distributed/core": [],
    "distributed/store": ["distributed/core"],
    "distributed/mailbox": ["distributed/core"],
    "distributed/messages": ["distributed/core"],
    "distributed/backends": ["distributed/mailbox", "distributed/messages"],
    "distributed/tree": ["distributed/core", "tensordict/bucket"],
    "distributed/p2p": ["distributed/mailbox", "distributed/tree"],
    "distributed": ["distributed/backends", "distributed/p2p", "distributed/store", "distributed/tree"],
    "distributed/launch": [],
    "bindings": ["distributed"],
    "bindings/c": ["distributed"],
    "bindings/rust": ["bindings/c"],
    "benchmarks": ["distributed"],
    "examples": ["distributed"],
}

# Folders whose subfolders are layers of their own that do not see each other.
_SIBLINGS = ["bindings", "distributed/backends"]

def _layer(package):
    """The layer that a package of this repository belongs to: the longest that fits."""
    best = None
    for layer in _BELOW:
        if (package == layer or package.startswith(layer + "/")) and (not best or len(layer) > len(best)):
            best = layer
    return best

def _all_below(layer):
    """The layers below `layer`, directly or not."""
    below = {}
    pending = [layer]
    for _ in range(len(_BELOW) * len(_BELOW)):
        if not pending:
            break
        for lower in _BELOW[pending.pop()]:
            if lower not in below:
                below[lower] = True
                pending.append(lower)
    return below

def is_forbidden(user, used):
    """Whether a library of package `user` must not depend on one of package `used`.

    Args:
      user: a package of this repository.
      used: a package of this repository.
    """
    user_layer, used_layer = _layer(user), _layer(used)
    if used.split("/")[0] == "third_party" or used == "":
        return False
    if user_layer == None or used_layer == None:
        # Tests and testing may see all; no library may see testing, or a folder not listed above.
        return user_layer != None or user.split("/")[0] not in ["testing", "third_party"]
    if user_layer != used_layer:
        return used_layer not in _all_below(user_layer)
    if user_layer not in _SIBLINGS:
        return False
    depth = len(user_layer.split("/"))
    return user.split("/")[depth:][:1] != used.split("/")[depth:][:1]

_EdgesInfo = provider(
    doc = "Edges between packages of this repository.",
    fields = {"edges": "depset of (user label, used label)"},
)

# This repository, also where another one depends on it.
_REPOSITORY = Label("//:BUILD").workspace_name

_ATTRIBUTES = ["cc_deps", "deps", "srcs", "hdrs", "data", "implementation_deps"]

def _edges_impl(target, ctx):
    if target.label.workspace_name != _REPOSITORY:
        return [_EdgesInfo(edges = depset())]
    own, below = [], []
    for attribute in _ATTRIBUTES:
        dependencies = getattr(ctx.rule.attr, attribute, None)
        for dependency in dependencies if type(dependencies) == "list" else []:
            if dependency.label.workspace_name == _REPOSITORY:
                own.append((target.label, dependency.label))
            if _EdgesInfo in dependency:
                below.append(dependency[_EdgesInfo].edges)
    return [_EdgesInfo(edges = depset(own, transitive = below))]

_edges = aspect(
    implementation = _edges_impl,
    attr_aspects = _ATTRIBUTES,
)

def _name(label):
    return "//%s:%s" % (label.package, label.name)

def _layering_test_impl(ctx):
    edges = depset(transitive = [target[_EdgesInfo].edges for target in ctx.attr.targets])
    forbidden = []
    for user, used in edges.to_list():
        packages = [ctx.attr.pretend.get(label.package, label.package) for label in [user, used]]
        if is_forbidden(packages[0], packages[1]):
            forbidden.append("%s must not use %s" % (_name(user), _name(used)))
    forbidden = sorted(forbidden)
    expected = sorted(ctx.attr.expected)
    script = ctx.actions.declare_file(ctx.label.name)
    lines = ["#!/bin/sh", "echo '%d edges between targets of this repository'" % len(edges.to_list())]
    lines += ["echo '%s'" % line for line in forbidden]
    ok = forbidden == expected and edges
    if not ok and expected:
        lines += ["echo 'expected: %s'" % line for line in expected]
    lines.append("exit %d" % (0 if ok else 1))
    ctx.actions.write(script, "\n".join(lines) + "\n", is_executable = True)
    return [DefaultInfo(executable = script)]

layering_test = rule(
    doc = "Fails when a target, or one that it needs, depends on a layer that it must not see.",
    implementation = _layering_test_impl,
    test = True,
    attrs = {
        "expected": attr.string_list(doc = "Edges that the test must find, for testing it."),
        "pretend": attr.string_dict(doc = "Package to the package it counts as, for testing it."),
        "targets": attr.label_list(aspects = [_edges], mandatory = True),
    },
)

def check_layers():
    """Fails while loading unless is_forbidden says what the picture above says."""
    for user, used, forbidden in [
        ("distributed/tree", "tensordict", False),
        ("distributed/tree", "distributed/core/channel", False),
        ("distributed", "distributed/backends/gloo", False),
        ("bindings/python", "distributed/core", False),
        ("examples", "distributed/tree", False),
        ("tensordict", "third_party", False),
        ("distributed/core/channel", "distributed/core/protocol", False),
        ("testing", "distributed/core", False),
        ("tensordict", "tensordict/bucket", True),
        ("tensordict", "distributed/core", True),
        ("distributed/core", "tensordict", True),
        ("distributed/core", "distributed/store", True),
        ("distributed/store", "distributed/backends/gloo", True),
        ("distributed/backends/gloo", "distributed/backends/shm", True),
        ("distributed/backends/gloo", "distributed/tree", True),
        ("distributed/tree", "distributed/backends/gloo", True),
        ("distributed/tree", "distributed", True),
        ("distributed/p2p", "distributed/core/channel", False),
        ("distributed", "distributed/p2p", False),
        ("distributed/tree", "distributed/p2p", True),
        ("distributed/p2p", "distributed/backends/gloo", True),
        ("distributed/launch", "distributed/core", True),
        ("bindings/python", "bindings/c", True),
        ("distributed", "bindings/python", True),
        ("distributed/core", "testing", True),
        ("distributed/core", "examples", True),
    ]:
        if is_forbidden(user, used) != forbidden:
            fail("is_forbidden(%r, %r) is not %r" % (user, used, forbidden))
