"""string_flag: a build setting with a list of values, so that no rule set has to be loaded for it."""

StringFlagInfo = provider(
    doc = "The value of a string_flag.",
    fields = {"value": "one of the flag's values"},
)

def _string_flag_impl(ctx):
    value = ctx.build_setting_value
    if value not in ctx.attr.values:
        fail("%s is %r, which is none of: %s" % (ctx.label, value, ", ".join(ctx.attr.values)))
    return [StringFlagInfo(value = value)]

string_flag = rule(
    doc = "Set on the command line, `--@leafpack//platforms:device=cpu`; read by config_setting's flag_values.",
    implementation = _string_flag_impl,
    build_setting = config.string(flag = True),
    attrs = {
        "values": attr.string_list(
            doc = "What may be given; anything else fails.",
            mandatory = True,
        ),
    },
)
