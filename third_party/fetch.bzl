"""Repository rules that fetch pinned archives from a public address or, failing that, from Debian.

Every file is checked against a sha256 that stands in this repository, whichever place it came
from, and goes through Bazel's repository cache, so that nothing is fetched twice.
"""

_APT_SOURCES = ["/etc/apt/sources.list.d/debian.sources", "/etc/apt/sources.list"]

def _host_mirrors(ctx):
    """Debian mirrors: that of LEAFPACK_DEBIAN_MIRROR, then those of the host's own apt set-up."""
    chosen = ctx.os.environ.get("LEAFPACK_DEBIAN_MIRROR", "").rstrip("/")
    mirrors = [chosen] if chosen else []
    for name in _APT_SOURCES:
        path = ctx.path(name)
        if not path.exists:
            continue
        for line in ctx.read(path).splitlines():
            words = line.split(" ")
            if words[0] not in ["URIs:", "deb"]:
                continue
            for word in words[1:]:
                url = word.rstrip("/")
                if url.startswith("http") and not url.endswith("-security") and url not in mirrors:
                    mirrors.append(url)
    return mirrors

def debian_urls(ctx, pool, optional = False):
    """Where a file of Debian's archive can be had.

    Args:
      ctx: the repository context.
      pool: the file's path below the archive's root, "pool/main/...".
      optional: whether it is no error that this host knows no mirror.

    Returns:
      URLs, not empty unless `optional`.
    """
    mirrors = _host_mirrors(ctx)
    if not mirrors and not optional:
        fail("%s comes from Debian's archive here, and this host's apt names no mirror of it: " % ctx.name +
             "set LEAFPACK_DEBIAN_MIRROR to the address of one (the folder that has dists/ and pool/)")
    return ["%s/%s" % (mirror, pool) for mirror in mirrors]

def _source_archive_impl(ctx):
    done = False
    if ctx.attr.urls:
        done = ctx.download_and_extract(
            url = ctx.attr.urls,
            sha256 = ctx.attr.sha256,
            stripPrefix = ctx.attr.strip_prefix,
            allow_fail = bool(ctx.attr.debian_pool),
        ).success
    if not done:
        ctx.download_and_extract(
            url = debian_urls(ctx, ctx.attr.debian_pool),
            sha256 = ctx.attr.debian_sha256,
            stripPrefix = ctx.attr.debian_strip_prefix,
            type = "tar.xz" if ctx.attr.debian_pool.endswith(".xz") else "tar.gz",
        )
    for path, label in ctx.attr.files.items():
        ctx.delete(path)
        ctx.file(path, ctx.read(ctx.path(Label(label))), executable = False)
    ctx.file("WORKSPACE", "workspace(name = \"%s\")\n" % ctx.name, executable = False)

source_archive = repository_rule(
    doc = "A source archive from its public address, else the same release from Debian's archive.",
    implementation = _source_archive_impl,
    environ = ["LEAFPACK_DEBIAN_MIRROR"],
    attrs = {
        "urls": attr.string_list(doc = "Public addresses; empty if Debian is the public address."),
        "sha256": attr.string(doc = "Of the file at `urls`."),
        "strip_prefix": attr.string(doc = "Leading folder in the file at `urls`."),
        "debian_pool": attr.string(doc = "Path below the root of Debian's archive."),
        "debian_sha256": attr.string(doc = "SHA-256 of Debian's file."),
        "debian_strip_prefix": attr.string(doc = "Leading folder in Debian's file."),
        "files": attr.string_dict(doc = "Files to lay over the source: path to the label it comes from."),
    },
)
