"""Finds the host's Python, for repository rules; a rule that calls it has the attribute _find_python."""

# The version that the pinned torch wheel is for.
PYTHON_VERSION = "3.11"

def _candidates(ctx):
    named = ctx.getenv("LEAFPACK_PYTHON")
    if named:
        return [named]
    return [ctx.which(name) for name in ["python3", "python" + PYTHON_VERSION] if ctx.which(name)]

def find_python(ctx):
    """What find_python.py says of the first fitting interpreter, a dict, or None."""
    for candidate in _candidates(ctx):
        result = ctx.execute([candidate, ctx.path(ctx.attr._find_python)])
        if result.return_code != 0:
            continue
        found = json.decode(result.stdout)
        if found["cpython"] and found["version"] == PYTHON_VERSION:
            return found
    return None

def compile_site(ctx, python, folder):
    """Compiles the modules below a folder of the repository, so that each test need not.

    The folder's sources never change, so the compiled files are not checked against them.
    """
    ctx.execute([
        python["executable"],
        "-m",
        "compileall",
        "-q",
        "-j0",
        "--invalidation-mode=unchecked-hash",
        "-x=/(testing|tests?|_inductor|onnx)/",
        folder,
    ], timeout = 3600)
