"""Tests that run on several ranks: multirank_cc_test, multirank_py_test, multirank_program_test.

    load("@leafpack//testing:defs.bzl", "multirank_cc_test")

    multirank_cc_test(
        name = "ring_test",
        srcs = ["ring_test.cc"],
        ranks = [2, 4],
        deps = [":ring"],
    )

makes the tests ring_test_2ranks and ring_test_4ranks and the suite ring_test of both. The code under
test need not use leafpack. Each rank is a process that finds RANK, WORLD_SIZE, LOCAL_RANK,
MASTER_ADDR and MASTER_PORT in its environment; the port is free for rank 0 to listen on, and every
test has a loopback network of its own (tag block-network). TEST_TMPDIR is one folder for all ranks.

Output lines begin with "[rank] "; the log of each rank is rank_<r>.log among the test's undeclared
outputs. The first rank that fails ends the test and is named. Shortly before Bazel's own time-out
the test shows where each rank stood, then ends all ranks by SIGTERM and, 5 s later, SIGKILL.
"""

load("//testing:multirank.bzl", "multirank_test")
load("//third_party:cc.bzl", "leafpack_cc_binary")
load("//third_party/python:rules.bzl", "leafpack_py_binary")

def _is_own_package():
    """True in leafpack's own repository, whose code is compiled with its warnings as errors."""
    return Label("//testing:defs.bzl").workspace_name == native.repository_name().lstrip("@")

def _for_ranks(values, n):
    """The entries of a dict by rank that exist among n ranks."""
    return {rank: value for rank, value in values.items() if int(rank) < n}

def _tests(
        name,
        program,
        ranks,
        size,
        timeout,
        env,
        rank_env,
        rank_timeout,
        expect_exit,
        hosts,
        backend,
        args,
        data,
        tags,
        kwargs):
    if not ranks:
        fail("multirank test %s: `ranks` is empty" % name)
    tests = []
    for n in ranks:
        if type(n) != "int" or n < 1:
            fail("multirank test %s: %r is no number of ranks" % (name, n))
        if type(hosts) != "int" or hosts < 1:
            fail("multirank test %s: %r is no number of hosts" % (name, hosts))
        test = "%s_%dranks" % (name, n) if n != 1 else "%s_1rank" % name
        multirank_test(
            name = test,
            size = size,
            timeout = timeout,
            args = args,
            data = data,
            env = dict(env, LEAFPACK_BACKEND = backend) if backend else env,
            expect_exit = _for_ranks(expect_exit, n),
            hosts = min(hosts, n),
            program = program,
            rank_env = _for_ranks(rank_env, n),
            rank_timeout = _for_ranks(rank_timeout, n),
            ranks = n,
            tags = tags + ["block-network", "cpu:%d" % n],
            **kwargs
        )
        tests.append(test)
    native.test_suite(
        name = name,
        tags = ["manual"] if "manual" in tags else [],
        tests = tests,
        visibility = kwargs.get("visibility"),
    )

def multirank_cc_test(
        name,
        srcs,
        deps = [],
        ranks = [1, 2, 4],
        size = "small",
        timeout = None,
        env = {},
        rank_env = {},
        rank_timeout = {},
        expect_exit = {},
        hosts = 1,
        backend = None,
        args = [],
        data = [],
        tags = [],
        copts = [],
        linkopts = [],
        defines = [],
        local_defines = [],
        main = True,
        **kwargs):
    """A GoogleTest program that every rank runs: the same tests in the same order.

    A failed expectation ends a rank after the test that it failed, and so the whole test; the
    remaining tests are not run.

    Args:
      name: name of the suite; the tests are <name>_1rank, <name>_2ranks, ...
      srcs: C++ sources with TEST(...)s.
      deps: of the program; GoogleTest is added.
      ranks: numbers of ranks, one test for each.
      size: Bazel's size of each test.
      timeout: Bazel's timeout, where it is not that of `size`.
      env: environment variables of all ranks; $(location) is expanded.
      rank_env: by rank, as a string, a list of "NAME=VALUE".
      rank_timeout: by rank, as a string, how long it may take from the start: "5s", "2m". A rank that
        is late fails the test as the test's own time-out does: it is named, all stacks are shown.
      expect_exit: by rank, as a string, how it must end in place of code 0: "SIGKILL", "3". Entries
        for ranks that a test does not have are left out, as in rank_env and rank_timeout.
      hosts: on how many pretended hosts the ranks stand, in blocks: each has a network, a host name
        and a /dev/shm of its own. Skipped, with the reason in log and XML, where the machine permits
        no namespaces. At most one host for each rank.
      backend: LEAFPACK_BACKEND of all ranks. The rule knows no backends: the program reads it.
      args: arguments of the program.
      data: files of the program.
      tags: of each test.
      copts: of the program, as in cc_binary.
      linkopts: of the program.
      defines: of the program.
      local_defines: of the program.
      main: False when the sources have a main of their own; GoogleTest is not added then.
      **kwargs: of the tests: flaky, shard_count, visibility, target_compatible_with, ...
    """
    program = name + "_program"
    cc_binary = leafpack_cc_binary if _is_own_package() else native.cc_binary
    cc_binary(
        name = program,
        testonly = True,
        srcs = srcs,
        copts = copts,
        data = data,
        defines = defines,
        linkopts = linkopts,
        linkstatic = True,
        local_defines = local_defines,
        tags = ["manual"] if "manual" in tags else [],
        target_compatible_with = kwargs.get("target_compatible_with", []),
        visibility = ["//visibility:private"],
        deps = deps + ([
            Label("@com_google_googletest//:gtest"),
            Label("//testing:multirank_main"),
        ] if main else []),
    )
    _tests(
        name,
        program,
        ranks,
        size,
        timeout,
        env,
        rank_env,
        rank_timeout,
        expect_exit,
        hosts,
        backend,
        args,
        data,
        tags,
        kwargs,
    )

def multirank_py_test(
        name,
        srcs,
        main = None,
        deps = [],
        ranks = [1, 2, 4],
        size = "medium",
        timeout = None,
        env = {},
        rank_env = {},
        rank_timeout = {},
        expect_exit = {},
        hosts = 1,
        backend = None,
        args = [],
        data = [],
        tags = [],
        imports = [],
        pytest = True,
        **kwargs):
    """A Python program that every rank runs, with pytest or as it is.

    The arguments are those of multirank_cc_test, and these:

    Args:
      name: name of the suite.
      srcs: Python sources.
      main: the one to run; may be left out when it is the first.
      deps: libraries, as leafpack_py_library makes them.
      ranks: numbers of ranks, one test for each.
      size: Bazel's size of each test.
      timeout: Bazel's timeout, where it is not that of `size`.
      env: environment variables of all ranks.
      rank_env: by rank, as a string, a list of "NAME=VALUE".
      rank_timeout: by rank, as a string, how long it may take.
      expect_exit: by rank, as a string, how it must end in place of code 0.
      hosts: on how many pretended hosts the ranks stand.
      backend: LEAFPACK_BACKEND of all ranks.
      args: arguments of the program.
      data: files of the program.
      tags: of each test.
      imports: folders of this package that go on the import path.
      pytest: run main's test functions in every rank, in the same order, up to the first failure.
        Otherwise main is a program, and fails by its exit code.
      **kwargs: of the tests.
    """
    program = name + "_program"
    leafpack_py_binary(
        name = program,
        testonly = True,
        srcs = srcs,
        main = main,
        data = data,
        imports = imports,
        pytest = pytest,
        tags = ["manual"] if "manual" in tags else [],
        target_compatible_with = kwargs.get("target_compatible_with", []),
        visibility = ["//visibility:private"],
        deps = deps + ([Label("@pypi_test//:site_packages")] if pytest else []),
    )
    env = dict({"PYTHONFAULTHANDLER": "1", "PYTHONUNBUFFERED": "1"}, **env)
    if pytest:
        args = ["--exitfirst", "--capture=no"] + args
    _tests(
        name,
        program,
        ranks,
        size,
        timeout,
        env,
        rank_env,
        rank_timeout,
        expect_exit,
        hosts,
        backend,
        args,
        data,
        tags,
        kwargs,
    )

def multirank_program_test(
        name,
        program,
        ranks = [1, 2, 4],
        size = "small",
        timeout = None,
        env = {},
        rank_env = {},
        rank_timeout = {},
        expect_exit = {},
        hosts = 1,
        backend = None,
        args = [],
        data = [],
        tags = [],
        **kwargs):
    """The same for any executable target, in whatever language.

    Args:
      name: name of the suite.
      program: label of an executable; every rank runs it, and fails by its exit code.
      ranks: numbers of ranks, one test for each.
      size: Bazel's size of each test.
      timeout: Bazel's timeout, where it is not that of `size`.
      env: environment variables of all ranks.
      rank_env: by rank, as a string, a list of "NAME=VALUE".
      rank_timeout: by rank, as a string, how long it may take.
      expect_exit: by rank, as a string, how it must end in place of code 0.
      hosts: on how many pretended hosts the ranks stand.
      backend: LEAFPACK_BACKEND of all ranks.
      args: arguments of the program.
      data: files of the program.
      tags: of each test.
      **kwargs: of the tests.
    """
    _tests(
        name,
        program,
        ranks,
        size,
        timeout,
        env,
        rank_env,
        rank_timeout,
        expect_exit,
        hosts,
        backend,
        args,
        data,
        tags,
        kwargs,
    )
