"""leafpack_wheel: a wheel of a Python library of the target graph, the same bytes from the same inputs."""

load("//third_party/python:rules.bzl", "PythonInterpreterInfo", "run_python")

def _wheel_impl(ctx):
    tag = ctx.attr._interpreter[PythonInterpreterInfo].tag
    wheel = ctx.actions.declare_file("%s-%s-%s.whl" % (ctx.attr.distribution, ctx.attr.version, tag))
    # Where leafpack is another repository's dependency, paths begin with ../ and its name there.
    workspace = "../%s/" % ctx.label.workspace_name if ctx.label.workspace_name else ""
    prefix = workspace + ctx.label.package + "/"

    # Path in the wheel to path on disk.
    files = {}
    for file in ctx.attr.library[DefaultInfo].files.to_list():
        if not file.short_path.startswith(prefix):
            fail("%s is not below the package of %s" % (file.short_path, ctx.label))
        files[file.short_path[len(prefix):]] = file
    licenses = {"LICENSE": ctx.file.license}
    for target, name in ctx.attr.linked_licenses.items():
        licenses["third_party/%s/LICENSE" % name] = target[DefaultInfo].files.to_list()[0]

    parameters = ctx.actions.declare_file(ctx.label.name + ".json")
    ctx.actions.write(parameters, json.encode_indent({
        "classifiers": ctx.attr.classifiers,
        "console_scripts": ctx.attr.console_scripts,
        "distribution": ctx.attr.distribution,
        "files": {path: file.path for path, file in files.items()},
        "license_expression": ctx.attr.license_expression,
        "licenses": {path: file.path for path, file in licenses.items()},
        "python_requires": ctx.attr.python_requires,
        "readme": ctx.file.readme.path,
        "requires": ctx.attr.requires,
        "summary": ctx.attr.summary,
        "tag": tag,
        "version": ctx.attr.version,
    }))
    run_python(
        ctx,
        script = ctx.file._builder,
        arguments = [parameters.path, wheel.path],
        inputs = [parameters, ctx.file.readme] + files.values() + licenses.values(),
        outputs = [wheel],
        mnemonic = "PythonWheel",
    )
    return [DefaultInfo(files = depset([wheel]), runfiles = ctx.runfiles([wheel]))]

leafpack_wheel = rule(
    doc = "A wheel: DISTRIBUTION-VERSION-TAG.whl, where the tag is that of the host's Python.",
    implementation = _wheel_impl,
    attrs = {
        "classifiers": attr.string_list(),
        "console_scripts": attr.string_dict(doc = "Programs that pip installs: name to module:function."),
        "distribution": attr.string(mandatory = True),
        "library": attr.label(
            doc = "The leafpack_py_library whose own srcs and data go in; its deps do not.",
            mandatory = True,
        ),
        "license": attr.label(allow_single_file = True, mandatory = True),
        "license_expression": attr.string(doc = "SPDX, of all that is in the wheel.", mandatory = True),
        "linked_licenses": attr.label_keyed_string_dict(
            allow_files = True,
            doc = "Licence files of libraries that are linked in, to the library's name.",
        ),
        "python_requires": attr.string(mandatory = True),
        "readme": attr.label(allow_single_file = [".md"], mandatory = True),
        "requires": attr.string_list(doc = "Requirements, as pip writes them."),
        "summary": attr.string(mandatory = True),
        "version": attr.string(mandatory = True),
        "_builder": attr.label(
            allow_single_file = True,
            default = "//third_party/python:wheel_builder.py",
        ),
        "_interpreter": attr.label(default = "@local_python//:interpreter"),
    },
)
