"""The host's Python and the wheels that Python tests need.

@local_python is the interpreter that LEAFPACK_PYTHON names, else python3 or python3.11 of the
PATH: the first that is CPython 3.11, for which the torch wheel is pinned. Where there is none, the
repository is there all the same and every target that needs it is skipped as incompatible.

@pypi_test, @pypi_twine and @pypi_build_tools are the unpacked wheels of test.txt, twine.txt and
build_tools.txt, fetched by pip, which checks their sha256. A build without Python tests never fetches
them.
"""

load("//third_party/python:find.bzl", "PYTHON_VERSION", "compile_site", "find_python")

def _local_python_impl(ctx):
    found = find_python(ctx)
    tag = "cp" + PYTHON_VERSION.replace(".", "")
    if found:
        # A virtual environment without packages: the base interpreter's standard library, and
        # nothing that the machine's owner has installed.
        ctx.symlink(found["base_executable"], "venv/bin/python3")
        ctx.file("venv/pyvenv.cfg", "home = %s\ninclude-system-site-packages = false\n" %
                                    ctx.path(found["base_executable"]).dirname, executable = False)
        ctx.symlink(found["include"], "include")
        if not ctx.path("include/Python.h").exists:
            # buildifier: disable=print
            print("%s has no Python.h; install its development package to build the Python module" %
                  found["executable"])
    else:
        # buildifier: disable=print
        print("no CPython %s found: Python targets are skipped (LEAFPACK_PYTHON names one)" % PYTHON_VERSION)
        ctx.file("venv/bin/python3", "")
        ctx.file("venv/pyvenv.cfg", "")
    ctx.template("BUILD.bazel", ctx.attr._build_file, {
        "%{rules}": str(Label("//third_party/python:rules.bzl")),
        "%{aarch64}": str(Label("//platforms:cpu_aarch64")),
        "%{compatible}": "[]" if found else "[\"@platforms//:incompatible\"]",
        "%{tag}": "%s-%s-%s" % (tag, tag, found["platform"] if found else "none"),
        "%{tag_aarch64}": "%s-%s-linux_aarch64" % (tag, tag),
    }, executable = False)

_local_python = repository_rule(
    implementation = _local_python_impl,
    local = True,
    environ = ["PATH"],
    attrs = {
        "_build_file": attr.label(default = "//third_party/python:local_python.BUILD"),
        "_find_python": attr.label(default = "//third_party/python:find_python.py"),
    },
)

def _wheels_impl(ctx):
    # Without an interpreter of the right version nothing here is used, but it can be loaded.
    found = find_python(ctx)
    ctx.file("site/.keep", "")
    if found:
        requirements = ctx.path(ctx.attr.requirements)
        pip = [found["executable"], "-m", "pip", "--disable-pip-version-check", "--quiet"]
        result = ctx.execute(pip + [
            "download",
            "--no-deps",
            "--require-hashes",
            "--only-binary=:all:",
            "--dest=wheels",
            "--requirement=" + str(requirements),
        ], timeout = 3600)
        if result.return_code != 0:
            fail("pip cannot fetch %s:\n%s%s" % (requirements, result.stdout, result.stderr))
        for wheel in ctx.path("wheels").readdir():
            archive = str(wheel) + ".zip"
            ctx.symlink(wheel, archive)
            ctx.extract(archive, output = "site")
            ctx.delete(archive)
        ctx.delete("wheels")
        compile_site(ctx, found, "site")
    ctx.template("BUILD.bazel", ctx.attr._build_file, {
        "%{rules}": str(Label("//third_party/python:rules.bzl")),
    }, executable = False)

_wheels = repository_rule(
    implementation = _wheels_impl,
    environ = ["PATH"],
    attrs = {
        "requirements": attr.label(mandatory = True),
        "_build_file": attr.label(default = "//third_party/python:wheels.BUILD"),
        "_find_python": attr.label(default = "//third_party/python:find_python.py"),
    },
)

def local_python(name):
    _local_python(name = name)

def pypi_build_tools(name):
    _wheels(name = name, requirements = Label("//third_party/python:build_tools.txt"))

def pypi_test(name):
    _wheels(name = name, requirements = Label("//third_party/python:test.txt"))

def pypi_twine(name):
    _wheels(name = name, requirements = Label("//third_party/python:twine.txt"))
