"""Prints what the repository rule must know of the interpreter that runs this, as JSON."""

import json
import sys
import sysconfig

print(
    json.dumps(
        {
            "version": "%d.%d" % sys.version_info[:2],
            "cpython": sys.implementation.name == "cpython",
            "executable": sys.executable,
            "base_executable": getattr(sys, "_base_executable", sys.executable),
            "include": sysconfig.get_path("include"),
            "platform": sysconfig.get_platform().replace("-", "_").replace(".", "_"),
        }
    )
)
