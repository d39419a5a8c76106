"""leafpack_cpp_package: a tar of C++ libraries of the target graph, for programs built without Bazel.

Which headers go in is read from the graph: those of `deps`, and those of this repository and of
`bundled` that they include, directly or not.
"""

load("//third_party/python:rules.bzl", "PythonInterpreterInfo", "run_python")

def _header_path(file):
    """A header's path as it is included, and the name of its repository."""
    path = file.short_path
    if not path.startswith("../"):
        return path, ""
    repository, _, rest = path[len("../"):].partition("/")
    return rest, repository

def _cpp_package_impl(ctx):
    name = "%s-%s-%s" % (ctx.attr.package, ctx.attr.version, ctx.attr.platform)
    tar = ctx.actions.declare_file(name + ".tar")

    public = {}
    for dep in ctx.attr.deps:
        for header in dep[CcInfo].compilation_context.direct_public_headers:
            public[_header_path(header)[0]] = True

    # Every header that could be included, but those of what the user's machine has.
    merged = cc_common.merge_cc_infos(cc_infos = [dep[CcInfo] for dep in ctx.attr.deps])
    found = {target.label.workspace_name: True for target in ctx.attr.found}
    bundled = {target.label.workspace_name: True for target in ctx.attr.bundled_licenses}
    headers, hidden = {}, {}
    for header in merged.compilation_context.headers.to_list():
        path, repository = _header_path(header)
        if repository in found:
            continue
        if repository == "" or repository in bundled:
            headers[path] = header
        else:
            hidden[path] = repository

    defines = {}
    for target in ctx.attr.found:
        for define in target[CcInfo].compilation_context.defines.to_list():
            defines[define] = True

    # Path in the tar to path on disk.
    files, inputs = {}, headers.values()

    placed = ctx.attr.files.items()
    for licenses in [ctx.attr.bundled_licenses, ctx.attr.linked_licenses]:
        placed += [
            (target, "share/doc/leafpack/third_party/%s/LICENSE" % repository)
            for target, repository in licenses.items()
        ]
    for target, path in placed:
        contents = target[DefaultInfo].files.to_list()
        if len(contents) != 1:
            fail("%s is not one file" % target.label)
        files[path] = contents[0].path
        inputs.append(contents[0])

    parameters = ctx.actions.declare_file(ctx.label.name + ".json")
    ctx.actions.write(parameters, json.encode_indent({
        "defines": sorted(defines),
        "executables": ctx.attr.executables,
        "files": files,
        "headers": {path: file.path for path, file in headers.items()},
        "hidden": hidden,
        "include": ctx.attr.include,
        "library": ctx.file.library.path,
        "public": sorted(public),
        "root": name,
        "substitutions": ctx.attr.substitutions,
        "templates": {path: target.files.to_list()[0].path for target, path in ctx.attr.templates.items()},
        "version": ctx.attr.version,
    }))
    run_python(
        ctx,
        script = ctx.file._builder,
        arguments = [parameters.path, tar.path],
        inputs = [parameters, ctx.file.library] + ctx.files.templates + inputs,
        outputs = [tar],
        mnemonic = "CppPackage",
    )
    return [DefaultInfo(files = depset([tar]), runfiles = ctx.runfiles([tar]))]

leafpack_cpp_package = rule(
    doc = "PACKAGE-VERSION-PLATFORM.tar: headers, a shared library and the files by which CMake and pkg-config find them.",
    implementation = _cpp_package_impl,
    attrs = {
        "bundled_licenses": attr.label_keyed_string_dict(
            allow_files = True,
            doc = "Licence files of other repositories whose headers go in, to the repository's name.",
        ),
        "deps": attr.label_list(
            doc = "The libraries whose headers are the interface.",
            mandatory = True,
            providers = [CcInfo],
        ),
        "executables": attr.string_list(doc = "Paths in the tar of programs."),
        "files": attr.label_keyed_string_dict(
            allow_files = True,
            doc = "Other files, each to its path in the tar.",
        ),
        "found": attr.label_list(
            doc = "Libraries of the user's machine: their headers stay out, their defines are the user's too.",
            providers = [CcInfo],
        ),
        "include": attr.string(doc = "The folder of the headers in the tar.", mandatory = True),
        "library": attr.label(
            allow_single_file = [".so"],
            doc = "The shared library; its file in the tar carries the version.",
            mandatory = True,
        ),
        "linked_licenses": attr.label_keyed_string_dict(
            allow_files = True,
            doc = "Licence files of other repositories that are linked in, to the repository's name.",
        ),
        "package": attr.string(mandatory = True),
        "platform": attr.string(mandatory = True),
        "substitutions": attr.string_dict(doc = "For the templates, where VALUE takes the place of @KEY@."),
        "templates": attr.label_keyed_string_dict(
            allow_files = True,
            doc = "Text files, each to its path in the tar. @VERSION@ and @DEFINES@ are known in them.",
        ),
        "version": attr.string(mandatory = True),
        "_builder": attr.label(allow_single_file = True, default = "//packaging:package_builder.py"),
        "_interpreter": attr.label(default = "@local_python//:interpreter"),
    },
)
