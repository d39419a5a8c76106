"""whole_cc_libraries: libraries of the target graph, every object of which is linked."""

load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain", "use_cpp_toolchain")

def _whole_cc_libraries_impl(ctx):
    toolchain = find_cpp_toolchain(ctx)
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )
    linking = cc_common.merge_cc_infos(cc_infos = [dep[CcInfo] for dep in ctx.attr.deps]).linking_context
    inputs = []
    for linker_input in linking.linker_inputs.to_list():
        libraries = []
        for library in linker_input.libraries:
            if library.pic_static_library or library.static_library:
                library = cc_common.create_library_to_link(
                    actions = ctx.actions,
                    alwayslink = True,
                    cc_toolchain = toolchain,
                    feature_configuration = features,
                    pic_static_library = library.pic_static_library,
                    static_library = library.static_library,
                )
            elif library.resolved_symlink_dynamic_library.basename in ctx.attr.left_out:
                continue
            libraries.append(library)
        inputs.append(cc_common.create_linker_input(
            additional_inputs = depset(linker_input.additional_inputs),
            libraries = depset(libraries),
            owner = linker_input.owner,
            user_link_flags = depset(linker_input.user_link_flags),
        ))
    return [CcInfo(linking_context = cc_common.create_linking_context(linker_inputs = depset(inputs)))]

whole_cc_libraries = rule(
    doc = "For a shared library: all that `deps` reach, also what they do not call themselves.",
    implementation = _whole_cc_libraries_impl,
    attrs = {
        "deps": attr.label_list(mandatory = True, providers = [CcInfo]),
        "left_out": attr.string_list(
            doc = "Shared libraries that are not named to the linker, because others of them bring them in.",
        ),
    },
    fragments = ["cpp"],
    toolchains = use_cpp_toolchain(),
)
