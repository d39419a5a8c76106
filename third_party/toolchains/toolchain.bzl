"""clang_toolchain: a cc_toolchain of the unpacked clang and a sysroot."""

load("@bazel_tools//tools/cpp:unix_cc_toolchain_config.bzl", "cc_toolchain_config")

def clang_toolchain(cpu, sysroot):
    """Makes cc_<cpu>.

    Args:
      cpu: of the target, as in its triple.
      sysroot: name of the sysroot's repository.
    """
    triple = cpu + "-linux-gnu"
    root = "external/" + sysroot
    target = [
        "--target=" + triple,
        "--sysroot=" + root,
        "--gcc-install-dir=%s/usr/lib/gcc/%s/10" % (root, triple),
        # Names of files as they are given, not where the sandbox's links lead.
        "-no-canonical-prefixes",
        # In glibc 2.31 threads are a library of their own.
        "-pthread",
    ]
    bin = "usr/lib/llvm-19/bin/"
    cc_toolchain_config(
        name = "config_" + cpu,
        abi_libc_version = "glibc_2.31",
        abi_version = "gcc",
        compile_flags = target + [
            "-include",
            root + "/usr/include/leafpack/glibc_baseline.h",
            "-fstack-protector",
            "-Wall",
            "-Wthread-safety",
            "-Wself-assign",
            "-fcolor-diagnostics",
            "-fno-omit-frame-pointer",
        ],
        compiler = "clang",
        coverage_compile_flags = ["-fprofile-instr-generate", "-fcoverage-mapping"],
        coverage_link_flags = ["-fprofile-instr-generate"],
        cpu = {"x86_64": "k8"}.get(cpu, cpu),
        dbg_compile_flags = ["-g"],
        host_system_name = "local",
        link_flags = target + ["-Wl,-z,relro,-z,now"],
        # Dynamic always: a second libstdc++ beside libtorch's frees what the other has allocated.
        # lld last: targets that cannot bear gold, many hosts' default, ask for bfd.
        link_libs = [
            "-fuse-ld=lld",
            "-Wl,--push-state,-as-needed",
            "-lstdc++",
            "-lm",
            "-Wl,--pop-state",
        ],
        opt_compile_flags = [
            "-g0",
            "-O2",
            "-D_FORTIFY_SOURCE=1",
            "-DNDEBUG",
            "-ffunction-sections",
            "-fdata-sections",
        ],
        opt_link_flags = ["-Wl,--gc-sections"],
        supports_start_end_lib = True,
        target_libc = "glibc_2.31",
        target_system_name = triple,
        tool_paths = {
            "ar": bin + "llvm-ar",
            "cpp": bin + "clang",
            "dwp": bin + "llvm-dwp",
            "gcc": bin + "clang",
            "gcov": "/bin/false",
            "ld": bin + "ld.lld",
            "llvm-cov": "/bin/false",
            "llvm-profdata": "/bin/false",
            "nm": bin + "llvm-nm",
            "objcopy": bin + "llvm-objcopy",
            "objdump": bin + "llvm-objdump",
            "strip": bin + "llvm-strip",
        },
        toolchain_identifier = "clang_19_" + cpu,
        unfiltered_compile_flags = [
            "-Wno-builtin-macro-redefined",
            "-D__DATE__=\"redacted\"",
            "-D__TIMESTAMP__=\"redacted\"",
            "-D__TIME__=\"redacted\"",
        ],
    )
    native.filegroup(
        name = "compiler_" + cpu,
        srcs = [":headers", ":tools", "@%s//:headers" % sysroot],
    )
    native.filegroup(
        name = "linker_" + cpu,
        srcs = [":runtimes", ":tools", "@%s//:libraries" % sysroot],
    )
    native.filegroup(
        name = "all_" + cpu,
        srcs = [":compiler_" + cpu, ":linker_" + cpu],
    )
    native.cc_toolchain(
        name = "cc_" + cpu,
        all_files = ":all_" + cpu,
        ar_files = ":tools",
        as_files = ":compiler_" + cpu,
        compiler_files = ":compiler_" + cpu,
        dwp_files = ":tools",
        linker_files = ":linker_" + cpu,
        objcopy_files = ":tools",
        strip_files = ":tools",
        supports_param_files = True,
        toolchain_config = ":config_" + cpu,
        toolchain_identifier = "clang_19_" + cpu,
    )
