"""count_results.py EVENTS STATUS PASSED FAILED: prints "N passed, N failed" and fails if N failed.

EVENTS is the file of --build_event_json_file of `bazel test`, STATUS what Bazel exited with; PASSED
and FAILED count steps beside the tests. A target that could not be built counts as failed, and one
that cannot run on this machine (no Python that fits) as skipped.
"""

import json
import sys


def outcomes(path):
    """The outcome of each test target, by label: passed, failed or skipped."""
    result = {}
    with open(path, encoding="utf-8") as events:
        for line in events:
            event = json.loads(line)
            identity = event["id"]
            if "targetConfigured" in identity and event.get("configured", {}).get("testSize"):
                result.setdefault(identity["targetConfigured"]["label"], "failed")
            elif "targetCompleted" in identity:
                label = identity["targetCompleted"]["label"]
                if event.get("aborted", {}).get("reason") == "SKIPPED" and label in result:
                    result[label] = "skipped"
            elif "testSummary" in identity:
                passed = event["testSummary"]["overallStatus"] in ("PASSED", "FLAKY")
                result[identity["testSummary"]["label"]] = "passed" if passed else "failed"
    return result


def main():
    path, status, passed, failed = sys.argv[1], *map(int, sys.argv[2:])
    result = outcomes(path)
    for label, outcome in sorted(result.items()):
        if outcome != "passed":
            print(f"{outcome}: {label}")
    counted = list(result.values())
    passed += counted.count("passed")
    failed += counted.count("failed")
    if status != 0 and "failed" not in counted:
        print(f"failed: the build itself (exit status {status})")
        failed += 1
    skipped = counted.count("skipped")
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
