"""switch: a flag that is on or off and that config_settings can ask for."""

switch = rule(
    implementation = lambda ctx: [],
    build_setting = config.bool(flag = True),
)
