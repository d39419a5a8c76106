#!/usr/bin/env bash
# Which Bazel bazelw runs, and that an install is whole or not there. Programs that bazelw would
# find on a machine are stand-ins; the install from Debian's archive is one that takes a second.
set -euo pipefail

bazelw=$(realpath "$1")
work=$TEST_TMPDIR
tools=$work/tools
failures=0

check() {  # check WHAT EXPECTED ACTUAL
  if [[ $2 == "$3" ]]; then
    echo "ok: $1"
  else
    printf 'FAILED: %s\n  expected: %s\n  actual:   %s\n' "$1" "$2" "$3"
    failures=$((failures + 1))
  fi
}

# fake_bazel FILE NAME VERSION: prints what it was called with.
fake_bazel() {
  mkdir -p "$(dirname "$1")"
  cat >"$1" <<SH
#!/bin/sh
if [ "\$1" = --version ]; then echo "bazel $3"; exit; fi
shift  # --bazelrc=...
echo "$2 in \$PWD wants \${USE_BAZEL_VERSION:-nothing}: \$*"
SH
  chmod +x "$1"
}

# What an ordinary machine has, less any Bazel; no download succeeds.
mkdir -p "$tools" "$work/elsewhere" "$work/pinned"
for tool in bash sh cat dirname realpath mkdir mktemp rm mv flock chmod uname sha256sum sleep ls; do
  ln -s "$(command -v "$tool")" "$tools/$tool"
done
printf '#!/bin/sh\nexit 22\n' >"$tools/curl"
chmod +x "$tools/curl"
echo 7.8.0 >"$work/pinned/.bazelversion"

# A checkout whose install script is a stand-in.
mkdir -p "$work/checkout/third_party/bazel"
cp "$bazelw" "$work/checkout/bazelw"
cat >"$work/checkout/third_party/bazel/from_debian.sh" <<SH
#!/usr/bin/env bash
echo "install" >>"$work/installs"
echo half >"\$1/half"
sleep 1
rm "\$1/half"
cat >"\$1/bazel" <<'BAZEL'
#!/bin/sh
if [ "\$1" = --version ]; then echo "bazel 7.7.1"; exit; fi
shift
echo "private: \$*"
BAZEL
chmod +x "\$1/bazel"
SH
chmod +x "$work/checkout/third_party/bazel/from_debian.sh"

# run PATH ARGS...: bazelw in the current folder.
run() {
  local path=$1
  shift
  env -i PATH="$path" HOME="$work/home" ${LEAFPACK_BAZEL:+LEAFPACK_BAZEL="$LEAFPACK_BAZEL"} \
    "$work/checkout/bazelw" "$@" 2>>"$work/stderr"
}
cd "$work/elsewhere"

fake_bazel "$work/new/bazel" new 7.9.0
fake_bazel "$work/old/bazel" old 7.6.2
fake_bazel "$work/eight/bazel" eight 8.0.0
fake_bazel "$work/isk/bazelisk" bazelisk 7.7.1
fake_bazel "$work/named/my-bazel" named 6.0.0

check "a fitting bazel on the PATH" "new in $PWD wants 7.7.1: test //..." \
  "$(run "$work/new:$tools" test //...)"
check "bazelisk before bazel" "bazelisk in $PWD wants 7.7.1: info" \
  "$(run "$work/new:$work/isk:$tools" info)"
check "the one that is named, of any version" "named in $PWD wants nothing: info" \
  "$(LEAFPACK_BAZEL=$work/named/my-bazel run "$work/new:$tools" info)"
check "a name that is no program fails" 1 \
  "$(LEAFPACK_BAZEL=$work/none run "$work/new:$tools" info >/dev/null; echo $?)"
check "and is said" 1 "$(grep -c "LEAFPACK_BAZEL=$work/none is not a program" "$work/stderr")"
check "a workspace's own version stands" "bazelisk in $work/pinned wants nothing: info" \
  "$(cd "$work/pinned" && run "$work/isk:$tools" info)"
check "nothing was installed so far" no "$([[ -e $work/installs ]] && echo yes || echo no)"

# An install that is killed half-way leaves nothing that counts as one.
setsid env -i PATH="$tools" HOME="$work/home" "$work/checkout/bazelw" info >/dev/null 2>&1 &
victim=$!
for ((i = 0; i < 400; i++)); do
  compgen -G "$work/home/.cache/leafpack/bazel/.stage.*/half" >/dev/null && break
  sleep 0.05
done
check "the install had begun" install "$(cat "$work/installs")"
kill -KILL -- "-$victim"
wait "$victim" 2>/dev/null || true
check "no install after a kill" no \
  "$([[ -e $work/home/.cache/leafpack/bazel/7.7.1 ]] && echo yes || echo no)"

# Two at once: one installs, both run; too old or too new ones on the PATH are passed over.
: >"$work/installs"
run "$work/old:$work/eight:$tools" first >"$work/first" &
run "$work/eight:$tools" second >"$work/second" &
wait
check "the first of two" "private: first" "$(cat "$work/first")"
check "the second of two" "private: second" "$(cat "$work/second")"
check "one install" 1 "$(grep -c install "$work/installs")"
check "no stage left" "" "$(compgen -G "$work/home/.cache/leafpack/bazel/.stage*" || true)"
check "a later call" "private: later" "$(run "$tools" later)"
check "still one install" 1 "$(grep -c install "$work/installs")"

# The caches are set where the user's cache folder is.
rc=$work/home/.cache/leafpack/bazelrc
check "repository cache" "common --repository_cache=$work/home/.cache/leafpack/repositories" \
  "$(grep repository_cache "$rc")"
check "disk cache" "common --disk_cache=$work/home/.cache/leafpack/disk" "$(grep -w disk_cache "$rc")"

# A download with other bytes than Bazel's release is refused.
cat >"$tools/curl" <<'SH'
#!/bin/sh
while [ "$1" != --output ]; do shift; done
echo junk >"$2"
SH
rm -rf "${work:?}/home"
check "wrong bytes fail" 1 "$(run "$tools" info >/dev/null; echo $?)"
check "and are said" 1 "$(grep -c 'wrong sha256' "$work/stderr")"
check "and leave no install" "" "$(ls "$work/home/.cache/leafpack/bazel")"

# Where no way works, the user learns what to install.
printf '#!/bin/sh\nexit 22\n' >"$tools/curl"
printf '#!/bin/sh\nexit 1\n' >"$work/checkout/third_party/bazel/from_debian.sh"
check "no way fails" 1 "$(run "$tools" info >/dev/null; echo $?)"
check "and says what to install" 1 "$(grep -c 'Install Bazel 7' "$work/stderr")"

if ((failures > 0)); then
  echo "--- what bazelw said:"
  cat "$work/stderr"
  exit 1
fi
