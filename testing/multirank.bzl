"""The rule behind multirank_cc_test and multirank_py_test: one program on n ranks."""

# Seconds between SIGTERM and SIGKILL.
_GRACE = 5

_SCRIPT = """#!/bin/sh
# Runs the ranks of a test; Bazel starts it in the runfiles folder of the workspace.
set -u
cd "${{TEST_SRCDIR:-$0.runfiles}}/{workspace}" || exit 1
# Ours ends before Bazel's, so that there is time to show where each rank stood.
limit=$(( ${{TEST_TIMEOUT:-3600}} * 9 / 10 - {grace} ))
# What programs for another CPU are started with (//third_party/toolchains/qemu); mostly nothing.
under=${{LEAFPACK_RUN_UNDER:-}}
{check_hosts}set -- -n {ranks} --hosts={hosts} --merge_stderr --grace={grace}s --linger=1s --timeout="${{limit}}s" {flags} -- $under {program} "$@"
if [ -n "${{TEST_UNDECLARED_OUTPUTS_DIR:-}}" ]; then
  set -- --log_dir="$TEST_UNDECLARED_OUTPUTS_DIR" "$@"
fi
# GoogleTest: the same order on all ranks, an end at the first failed test, no file that ranks would
# all write (Bazel makes the XML from the log).
unset XML_OUTPUT_FILE TEST_PREMATURE_EXIT_FILE
seed=${{TEST_RANDOM_SEED:-1}}
exec $under {launcher} --env=GTEST_FAIL_FAST=1 --env=GTEST_RANDOM_SEED="$seed" "$@"
"""

# With several hosts: a machine that lets none be pretended skips the test, and says so.
_CHECK_HOSTS = """if ! why=$($under {launcher} --hosts={hosts} --check_hosts 2>&1); then
  echo "SKIPPED: $why"
  if [ -n "${{XML_OUTPUT_FILE:-}}" ]; then
    echo '<testsuites><testsuite name="{name}" tests="1" skipped="1"><testcase name="hosts">' \
      "<skipped message=\"$(echo "$why" | tr -d '<&"')\"/></testcase></testsuite></testsuites>" >"$XML_OUTPUT_FILE"
  fi
  exit 0
fi
"""

def _quote(text):
    return "'" + text.replace("'", "'\\''") + "'"

def _runfile(file):
    """Path of a file from the runfiles folder of the workspace."""
    return "./" + file.short_path

def _impl(ctx):
    def expand(text):
        return ctx.expand_location(text, ctx.attr.data)

    flags = ["--env=%s=%s" % (name, expand(value)) for name, value in ctx.attr.env.items()]
    for rank, settings in ctx.attr.rank_env.items():
        flags += ["--env=%s:%s" % (rank, expand(setting)) for setting in settings]
    flags += ["--rank_timeout=%s:%s" % (rank, limit) for rank, limit in ctx.attr.rank_timeout.items()]
    flags += ["--expect_exit=%s:%s" % (rank, how) for rank, how in ctx.attr.expect_exit.items()]

    launcher = _quote(_runfile(ctx.executable._launcher))
    check_hosts = "" if ctx.attr.hosts == 1 else _CHECK_HOSTS.format(
        hosts = ctx.attr.hosts,
        launcher = launcher,
        name = ctx.label.name,
    )
    script = ctx.actions.declare_file(ctx.label.name)
    ctx.actions.write(script, _SCRIPT.format(
        check_hosts = check_hosts,
        flags = " ".join([_quote(flag) for flag in flags]),
        grace = _GRACE,
        hosts = ctx.attr.hosts,
        launcher = launcher,
        program = _quote(_runfile(ctx.executable.program)),
        ranks = ctx.attr.ranks,
        workspace = ctx.workspace_name,
    ), is_executable = True)

    runfiles = ctx.runfiles(files = ctx.files.data + [ctx.executable._launcher, ctx.executable.program])
    for target in [ctx.attr.program, ctx.attr._launcher] + ctx.attr.data:
        runfiles = runfiles.merge(target[DefaultInfo].default_runfiles)
    return [DefaultInfo(executable = script, runfiles = runfiles)]

multirank_test = rule(
    implementation = _impl,
    test = True,
    attrs = {
        "data": attr.label_list(allow_files = True),
        "env": attr.string_dict(),
        "expect_exit": attr.string_dict(),
        "hosts": attr.int(default = 1),
        "program": attr.label(mandatory = True, executable = True, cfg = "target"),
        "rank_env": attr.string_list_dict(),
        "rank_timeout": attr.string_dict(),
        "ranks": attr.int(mandatory = True),
        "_launcher": attr.label(
            default = Label("//distributed/launch"),
            executable = True,
            cfg = "target",
        ),
    },
)
