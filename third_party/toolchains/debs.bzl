"""Unpacks pinned Debian packages into one tree, with Bazel's own means: no root, no dpkg."""

load("//third_party:fetch.bzl", "debian_urls")

def unpack_debs(ctx, packages):
    """Downloads the packages of a tree at once, and unpacks them one after another.

    Absolute links come out relative to the tree's root.

    Args:
      ctx: the repository context; its rule names LEAFPACK_DEBIAN_MIRROR in `environ`.
      packages: as in lock.bzl.
    """
    packages = [package.split(" ") for package in packages]
    pending = [
        ctx.download(
            url = debian_urls(ctx, pool),
            output = "debs/%s.deb" % name,
            sha256 = sha256,
            allow_fail = True,
            block = False,
        )
        for name, _, pool, sha256 in packages
    ]
    for (name, version, pool, _), download in zip(packages, pending):
        if not download.wait().success:
            fail("%s needs %s %s, and no mirror of this host has %s, which is what a mirror does with " %
                 (ctx.name, name, version, pool) +
                 "a package that was superseded. Set LEAFPACK_DEBIAN_MIRROR to an archive that keeps old " +
                 "packages, or write the lock anew: docs/toolchains.md")
        ctx.extract("debs/%s.deb" % name, output = "debs/" + name)
        for entry in ctx.path("debs/" + name).readdir():
            if entry.basename.startswith("data.tar"):
                ctx.extract(entry, output = ".")
    ctx.delete("debs")
