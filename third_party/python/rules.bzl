"""Rules for Python code: leafpack_py_library, leafpack_py_binary, leafpack_py_test, leafpack_py_extension.

Programs run in @local_python with exactly the import folders of their dependencies; nothing that
is installed on the machine is seen. @pypi_test//:site_packages and @libtorch//:python_package are
such dependencies.
"""

load("//third_party:cc.bzl", "leafpack_cc_binary")

PythonInfo = provider(
    doc = "Import folders of a Python library and its dependencies.",
    fields = {"imports": "depset of runfiles paths that go on the import path"},
)

PythonInterpreterInfo = provider(
    doc = "The interpreter that runs Python programs.",
    fields = {
        "executable": "File",
        "tag": "tags of wheels for it: python-abi-platform",
    },
)

def _python_interpreter_impl(ctx):
    files = depset([ctx.file.executable] + ctx.files.files)
    return [
        DefaultInfo(files = files, runfiles = ctx.runfiles(transitive_files = files)),
        PythonInterpreterInfo(executable = ctx.file.executable, tag = ctx.attr.tag),
    ]

python_interpreter = rule(
    doc = "The host's interpreter, in @local_python.",
    implementation = _python_interpreter_impl,
    attrs = {
        "executable": attr.label(allow_single_file = True, mandatory = True),
        "files": attr.label_list(allow_files = True),
        "tag": attr.string(mandatory = True),
    },
)

def _runfiles_path(ctx, path):
    """A path below this package as it is under the root of the runfiles."""
    parts = [ctx.label.workspace_name or ctx.workspace_name, ctx.label.package, path]
    return "/".join([part for part in parts if part and part != "."])

def _rootpath(ctx, file):
    path = file.short_path
    return path[len("../"):] if path.startswith("../") else ctx.workspace_name + "/" + path

def _collect(ctx, files):
    """Runfiles and imports of this target: its own and those of deps and data."""
    runfiles = ctx.runfiles(files = files)
    runfiles = runfiles.merge_all([
        dep[DefaultInfo].default_runfiles
        for dep in ctx.attr.deps + ctx.attr.data
    ])
    imports = depset(
        [_runfiles_path(ctx, path) for path in ctx.attr.imports],
        order = "preorder",
        transitive = [dep[PythonInfo].imports for dep in ctx.attr.deps],
    )
    return runfiles, imports

def _library_impl(ctx):
    files = ctx.files.srcs + ctx.files.data
    runfiles, imports = _collect(ctx, files)
    return [
        DefaultInfo(files = depset(files), runfiles = runfiles),
        PythonInfo(imports = imports),
    ]

_LIBRARY_ATTRS = {
    "srcs": attr.label_list(
        allow_files = [".py", ".pyi"],
        doc = "Python files and stubs.",
    ),
    "data": attr.label_list(
        allow_files = True,
        doc = "Other files needed at run time: extension modules, py.typed, data.",
    ),
    "deps": attr.label_list(providers = [PythonInfo]),
    "imports": attr.string_list(
        doc = "Folders, relative to the package, that go on the import path; \".\" is the package.",
    ),
}

leafpack_py_library = rule(
    doc = "Python files with what they need at run time.",
    implementation = _library_impl,
    attrs = _LIBRARY_ATTRS,
)

def _program_impl(ctx):
    main = ctx.file.main or ctx.files.srcs[0]
    files = ctx.files.srcs + ctx.files.data + ctx.files.main
    runfiles, imports = _collect(ctx, files)
    runfiles = runfiles.merge(ctx.attr._interpreter[DefaultInfo].default_runfiles)
    launcher = ctx.actions.declare_file(ctx.label.name)
    ctx.actions.expand_template(
        template = ctx.file._template,
        output = launcher,
        is_executable = True,
        substitutions = {
            "%{imports}": " ".join(imports.to_list()),
            "%{interpreter}": _rootpath(ctx, ctx.attr._interpreter[PythonInterpreterInfo].executable),
            "%{main}": _rootpath(ctx, main),
            "%{pytest}": "yes" if ctx.attr.pytest else "",
        },
    )
    return [
        DefaultInfo(files = depset([launcher]), runfiles = runfiles, executable = launcher),
        PythonInfo(imports = imports),
        testing.TestEnvironment(ctx.attr.env),
    ]

_PROGRAM_ATTRS = dict(
    _LIBRARY_ATTRS,
    main = attr.label(
        allow_single_file = [".py"],
        doc = "The file to run; the first of srcs by default.",
    ),
    env = attr.string_dict(doc = "Environment of a test."),
    pytest = attr.bool(doc = "Run main with pytest instead of as a program."),
    _interpreter = attr.label(default = "@local_python//:interpreter"),
    _template = attr.label(
        default = "//third_party/python:launcher.sh.tpl",
        allow_single_file = True,
    ),
)

leafpack_py_binary = rule(
    doc = "A Python program.",
    implementation = _program_impl,
    executable = True,
    attrs = _PROGRAM_ATTRS,
)

_py_test = rule(
    implementation = _program_impl,
    test = True,
    attrs = _PROGRAM_ATTRS,
)

# What needs the extension module: the interpreter does not carry a sanitizer's run-time.
_TAGS = ["no-sanitizer"]

def leafpack_py_test(name, size, deps = [], pytest = True, tags = [], **kwargs):
    """A Python test: a file of pytest tests, or with pytest = False a program that exits with 0.

    torch, tensordict and pytest are importable in every test.
    """
    _py_test(
        name = name,
        size = size,
        pytest = pytest,
        tags = tags + _TAGS,
        deps = deps + ["@libtorch//:python_package", "@pypi_test//:site_packages"],
        **kwargs
    )

def run_python(ctx, script, arguments, inputs, outputs, mnemonic):
    """An action that runs a script, which uses the standard library only."""
    interpreter = ctx.attr._interpreter
    ctx.actions.run(
        executable = interpreter[PythonInterpreterInfo].executable,
        arguments = ["-I", script.path] + arguments,
        inputs = depset([script] + inputs, transitive = [interpreter[DefaultInfo].files]),
        outputs = outputs,
        mnemonic = mnemonic,
    )

def _without_runpath_impl(ctx):
    module = ctx.actions.declare_file(ctx.label.name)
    run_python(
        ctx,
        script = ctx.file._drop_runpath,
        arguments = [ctx.file.linked.path, module.path] + ctx.attr.not_needed,
        inputs = [ctx.file.linked],
        outputs = [module],
        mnemonic = "DropRunpath",
    )
    return [DefaultInfo(files = depset([module]), runfiles = ctx.runfiles([module]))]

without_runpath = rule(
    doc = "A linked library without the paths, into Bazel's folders, that it looks for others in.",
    implementation = _without_runpath_impl,
    attrs = {
        "linked": attr.label(allow_single_file = True, mandatory = True),
        "not_needed": attr.string_list(doc = "Libraries that it does not name as needed any more."),
        "_drop_runpath": attr.label(
            default = "//third_party/python:drop_runpath.py",
            allow_single_file = True,
        ),
        "_interpreter": attr.label(default = "@local_python//:interpreter"),
    },
)

# Of torch for aarch64 beside libtorch_cpu.so, which brings them in; which they are differs between its wheels.
_FOUND_BY_TORCH_AARCH64 = [
    "libarm_compute.so",
    "libarm_compute_graph.so",
    "libcudart.so.13",
    "libcupti.so.13",
    "libgfortran.so.5",
    "libgomp.so.1",
    "libnvpl_blas_core.so.0",
    "libnvpl_blas_lp64_gomp.so.0",
    "libnvpl_lapack_core.so.0",
    "libnvpl_lapack_lp64_gomp.so.0",
]

def leafpack_py_extension(
        name,
        deps,
        srcs = [],
        copts = [],
        visibility = None,
        testonly = False,
        tags = []):
    """A Python extension module NAME.so: exports its init symbol and nothing else.

    The name may hold folders, "package/_module", to stand beside the package's Python files. The
    module names torch's libraries but holds no path to them: `import torch` must have loaded them.
    Everything else is linked in.
    """
    module = name.split("/")[-1]
    script = name + "_exports.lds"
    linked = name + "_linked.so"
    native.genrule(
        name = name + "_exports",
        outs = [script],
        cmd = "echo '{ global: PyInit_%s; local: *; };' > $@" % module,
        tags = tags + _TAGS,
    )
    leafpack_cc_binary(
        name = linked,
        srcs = srcs,
        copts = copts,
        additional_linker_inputs = [script],
        # Not gold: it exports unique symbols (statics of inline functions) whatever the script says.
        features = ["-supports_start_end_lib"],
        linkopts = [
            "-fuse-ld=bfd",
            "-Wl,--version-script=$(location %s)" % script,
        ],
        linkshared = True,
        tags = tags + _TAGS,
        testonly = testonly,
        deps = deps + ["@libtorch//:python"],
    )
    without_runpath(
        name = name + ".so",
        linked = linked,
        not_needed = select({
            Label("//platforms:cpu_aarch64"): _FOUND_BY_TORCH_AARCH64,
            "//conditions:default": [],
        }),
        tags = tags + _TAGS,
        testonly = testonly,
        visibility = visibility,
    )
