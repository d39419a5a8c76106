"""Fetches pinned wheels for repository rules: from a public address, else through pip."""

def _any_python(ctx):
    """A Python 3 to run pip with; its version does not matter."""
    python = ctx.getenv("LEAFPACK_PYTHON") or ctx.which("python3")
    if not python:
        fail("no python3 on the PATH, which is needed to run pip")
    return str(python)

def fetch_wheel(ctx, url, requirement, file, sha256):
    """Downloads one wheel and leaves it in the repository's folder.

    It goes through Bazel's repository cache in both cases: a file that pip fetched is handed to
    the cache too, so the next fetch of the same sha256 needs no network.

    Args:
      ctx: the repository context.
      url: the public address, tried first.
      requirement: what to ask pip for, "name==version".
      file: name of the wheel.
      sha256: of the wheel.

    Returns:
      The name of the downloaded file, relative to the repository; it ends in .zip.
    """
    archive = file + ".zip"
    if ctx.download(url = url, output = archive, sha256 = sha256, allow_fail = True).success:
        return archive
    _, _, python_tag, abi, platform = file[:-len(".whl")].split("-")
    folder = str(ctx.path("pip"))
    result = ctx.execute([
        _any_python(ctx),
        "-m",
        "pip",
        "download",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--only-binary=:all:",
        "--implementation=" + ("py" if python_tag.startswith("py") else "cp"),
        "--python-version=" + (python_tag[2:] if python_tag.startswith("cp") else "311"),
        "--abi=" + abi,
    ] + ["--platform=" + tag for tag in platform.split(".")] + [
        "--dest=" + folder,
        requirement,
    ], timeout = 3600)
    fetched = ctx.path("pip/" + file)
    if result.return_code != 0 or not fetched.exists:
        fail("cannot fetch %s: not from %s, and pip said:\n%s%s" %
             (file, url, result.stdout, result.stderr))
    ctx.download(url = "file://" + str(fetched), output = archive, sha256 = sha256)
    ctx.delete("pip")
    return archive
