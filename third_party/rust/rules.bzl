"""Rules for Rust code: leafpack_rust_library, leafpack_rust_binary, leafpack_rust_test, leafpack_rust_doc_test.

Crates depend on crates of this repository, on std, and on shared libraries of cc_library targets. They
are compiled by @local_rust; where there is none they are skipped. Warnings are errors.
"""

RustToolchainInfo = provider(
    doc = "The compiler.",
    fields = {"rustc": "File", "rustdoc": "File", "version": "File"},
)

RustInfo = provider(
    doc = "A crate.",
    fields = {
        "crate": "its name",
        "rlib": "File",
        "sources": "depset of its own Files",
        "rlibs": "depset of the rlibs of it and of what it needs",
        "libraries": "depset of the shared libraries that programs are linked with",
    },
)

_EDITION = "2021"
_TAGS = ["no-sanitizer"]
_COMPATIBLE = Label("@local_rust//:toolchain")

def _rust_toolchain_impl(ctx):
    return [RustToolchainInfo(
        rustc = ctx.file.rustc,
        rustdoc = ctx.file.rustdoc,
        version = ctx.file.version,
    )]

rust_toolchain = rule(
    doc = "The host's compiler, in @local_rust.",
    implementation = _rust_toolchain_impl,
    attrs = {
        "rustc": attr.label(allow_single_file = True, mandatory = True),
        "rustdoc": attr.label(allow_single_file = True, mandatory = True),
        "version": attr.label(allow_single_file = True, mandatory = True),
    },
)

def _shared_libraries(deps):
    """The shared libraries behind cc_library targets."""
    found = []
    for dep in deps:
        for linker_input in dep[CcInfo].linking_context.linker_inputs.to_list():
            for library in linker_input.libraries:
                if library.dynamic_library:
                    found.append(library.dynamic_library)
    return found

def _inputs(ctx):
    """rlibs and shared libraries of a target's deps."""
    rlibs = depset(transitive = [dep[RustInfo].rlibs for dep in ctx.attr.deps])
    libraries = depset(
        _shared_libraries(ctx.attr.cc_deps),
        transitive = [dep[RustInfo].libraries for dep in ctx.attr.deps],
    )
    return rlibs, libraries

def _crate_flags(ctx, rlibs, path):
    """Flags by which the compiler finds crates; `path` says where a File is."""
    flags = ["--edition=" + _EDITION]
    flags += ["-Ldependency=%s" % folder for folder in _unique([_dirname(path(rlib)) for rlib in rlibs])]
    flags += ["--extern=%s=%s" % (dep[RustInfo].crate, path(dep[RustInfo].rlib)) for dep in ctx.attr.deps]
    return flags

def _link_flags(libraries, path):
    flags = ["-Lnative=%s" % folder for folder in _unique([_dirname(path(library)) for library in libraries])]

    # What a shared library needs itself is found where it is loaded.
    return flags + ["-Clink-arg=-Wl,--allow-shlib-undefined"]

def _dirname(path):
    return path.rpartition("/")[0]

def _unique(items):
    return {item: True for item in items}.keys()

def _rootpath(ctx, file):
    path = file.short_path
    return path[len("../"):] if path.startswith("../") else ctx.workspace_name + "/" + path

# The sanitizers are in stable compilers, behind a flag that those take from who says that he knows.
_ASAN_FLAGS = ["-Zsanitizer=address", "-Cforce-frame-pointers=yes", "-Cdebuginfo=1"]
_ASAN_ENV = {"RUSTC_BOOTSTRAP": "1"}

def _compile(ctx, output, flags, inputs):
    toolchain = ctx.attr._toolchain[RustToolchainInfo]
    asan = ctx.attr.asan_runtime != None
    ctx.actions.run(
        executable = toolchain.rustc,
        arguments = [
            ctx.file.root.path,
            "-o",
            output.path,
            "-Copt-level=3",
            "-Cpanic=unwind",
            "-Dwarnings",
        ] + flags + (_ASAN_FLAGS if asan else []),
        env = _ASAN_ENV if asan else {},
        inputs = depset([toolchain.version, ctx.file.root] + ctx.files.srcs, transitive = inputs),
        outputs = [output],
        mnemonic = "Rustc",
        use_default_shell_env = True,
    )

def _library_impl(ctx):
    rlibs, libraries = _inputs(ctx)
    rlib = ctx.actions.declare_file("lib%s.rlib" % ctx.attr.crate)
    flags = ["--crate-type=rlib", "--crate-name=" + ctx.attr.crate]
    flags += ["-ldylib=%s" % library for library in ctx.attr.link]
    flags += _crate_flags(ctx, rlibs.to_list(), lambda file: file.path)
    _compile(ctx, rlib, flags, [rlibs])
    sources = depset([ctx.file.root] + ctx.files.srcs)
    return [
        DefaultInfo(files = depset([rlib])),
        RustInfo(
            crate = ctx.attr.crate,
            libraries = libraries,
            rlib = rlib,
            rlibs = depset([rlib], transitive = [rlibs]),
            sources = sources,
        ),
    ]

_ATTRS = {
    "asan_runtime": attr.label(
        doc = "@local_rust//:asan, if the crate is to be instrumented by the address sanitizer; so are its deps then.",
    ),
    "cc_deps": attr.label_list(
        doc = "cc_library targets with the shared libraries that the crate calls.",
        providers = [CcInfo],
    ),
    "data": attr.label_list(allow_files = True),
    "deps": attr.label_list(doc = "Crates.", providers = [RustInfo]),
    "root": attr.label(allow_single_file = [".rs"], doc = "The file that rustc is given.", mandatory = True),
    "srcs": attr.label_list(allow_files = [".rs"], doc = "The other files."),
    "_template": attr.label(allow_single_file = True, default = "//third_party/rust:run.sh.tpl"),
    "_toolchain": attr.label(default = _COMPATIBLE, providers = [RustToolchainInfo]),
}

_rust_library = rule(
    implementation = _library_impl,
    attrs = dict(
        _ATTRS,
        crate = attr.string(mandatory = True),
        link = attr.string_list(doc = "Names of the shared libraries, as linkers take them."),
    ),
)

def _launcher(ctx, command, libraries, files):
    """A script that runs `command` with the libraries at hand, and its runfiles."""
    script = ctx.actions.declare_file(ctx.label.name)
    folders = _unique([_dirname(_rootpath(ctx, library)) for library in libraries.to_list()])
    ctx.actions.expand_template(
        template = ctx.file._template,
        output = script,
        is_executable = True,
        substitutions = {"%{command}": command, "%{folders}": " ".join(folders)},
    )
    runfiles = ctx.runfiles(files = files + ctx.files.data, transitive_files = libraries)
    runfiles = runfiles.merge_all([dep[DefaultInfo].default_runfiles for dep in ctx.attr.data])
    return DefaultInfo(executable = script, files = depset([script]), runfiles = runfiles)

def _program_impl(ctx):
    rlibs, libraries = _inputs(ctx)
    program = ctx.actions.declare_file(ctx.label.name + "_linked")
    flags = ["--test"] if ctx.attr.harness else ["--crate-type=bin"]
    flags += ["--crate-name=" + ctx.label.name.replace("-", "_")]
    flags += _crate_flags(ctx, rlibs.to_list(), lambda file: file.path)
    flags += _link_flags(libraries.to_list(), lambda file: file.path)
    _compile(ctx, program, flags, [rlibs, libraries])
    command = 'exec "$RUNFILES_DIR/%s" "$@"' % _rootpath(ctx, program)
    return [_launcher(ctx, command, libraries, [program])]

_PROGRAM_ATTRS = dict(
    _ATTRS,
    harness = attr.bool(doc = "Compile the file's #[test] functions instead of its main."),
)

_rust_binary = rule(
    implementation = _program_impl,
    executable = True,
    attrs = _PROGRAM_ATTRS,
)

_rust_test = rule(
    implementation = _program_impl,
    test = True,
    attrs = _PROGRAM_ATTRS,
)

def _doc_test_impl(ctx):
    toolchain = ctx.attr._toolchain[RustToolchainInfo]
    crate = ctx.attr.crate[RustInfo]
    deps = [crate] + [dep[RustInfo] for dep in ctx.attr.deps]
    rlibs = depset(transitive = [dep.rlibs for dep in deps])
    libraries = depset(transitive = [dep.libraries for dep in deps])

    def path(file):
        return "$RUNFILES_DIR/" + _rootpath(ctx, file)

    flags = ["--test", "--edition=" + _EDITION, "--crate-name=" + crate.crate]
    flags += ["-Ldependency=%s" % folder for folder in _unique([_dirname(path(rlib)) for rlib in rlibs.to_list()])]
    flags += ["--extern=%s=%s" % (dep.crate, path(dep.rlib)) for dep in deps]
    flags += _link_flags(libraries.to_list(), path)
    command = 'cd "${TEST_TMPDIR:-/tmp}"\nexec "%s" "%s" %s "$@"' % (
        path(toolchain.rustdoc),
        path(ctx.file.root),
        " ".join(['"%s"' % flag for flag in flags]),
    )
    files = [toolchain.rustdoc, ctx.file.root] + crate.sources.to_list() + rlibs.to_list()
    return [_launcher(ctx, command, libraries, files)]

_rust_doc_test = rule(
    implementation = _doc_test_impl,
    test = True,
    attrs = dict(_ATTRS, crate = attr.label(mandatory = True, providers = [RustInfo])),
)

def _asan_runtime(asan):
    return Label("@local_rust//:asan") if asan else None

def leafpack_rust_library(name, crate, root, asan = False, tags = [], **kwargs):
    """A crate, as lib<crate>.rlib.

    Args:
      name: of the target.
      crate: the crate's name.
      root: its first file, src/lib.rs.
      asan: instrumented by the address sanitizer. Skipped where the compiler has no run-time for it.
      tags: of the target.
      **kwargs: srcs, deps, cc_deps, link, visibility, ...
    """
    _rust_library(
        name = name,
        asan_runtime = _asan_runtime(asan),
        crate = crate,
        root = root,
        tags = tags + _TAGS,
        **kwargs
    )

def leafpack_rust_binary(name, root, asan = False, tags = [], **kwargs):
    """A program."""
    _rust_binary(name = name, asan_runtime = _asan_runtime(asan), root = root, tags = tags + _TAGS, **kwargs)

def leafpack_rust_test(name, size, root, asan = False, tags = [], **kwargs):
    """The #[test] functions of a file."""
    _rust_test(
        name = name,
        size = size,
        asan_runtime = _asan_runtime(asan),
        harness = True,
        root = root,
        tags = tags + _TAGS,
        **kwargs
    )

def leafpack_rust_doc_test(name, size, root, tags = [], **kwargs):
    """The examples in the documentation of a crate, compiled when the test runs."""
    _rust_doc_test(name = name, size = size, root = root, tags = tags + _TAGS, **kwargs)
