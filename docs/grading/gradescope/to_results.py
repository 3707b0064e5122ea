"""Gradescope's results.json from what `ep-lib grade EXERCISE --all DIR --json` says of one submission.

python to_results.py grade.json results.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def results(record: dict[str, Any]) -> dict[str, Any]:
    """A test of Gradescope's for each task. What could not be graded has no score, so that nobody takes it for 0."""
    if "error" in record:
        return {"output": f"Not graded: {record['error']}", "tests": []}
    tests = [
        {
            "name": f"task {each['task']}: {each['title']}",
            "score": each["points"],
            "max_score": each["of"],
            "status": "passed" if each["passed"] else "failed",
            "output": "\n".join(filter(None, (each["failed_behaviour"], each["message"]))),
            "visibility": "visible",
        }
        for each in record["tasks"]
    ]
    for_instructors = [*record["flags"], *record["not_enforced"]]
    if for_instructors:
        tests.append({"name": "for the instructor", "output": "\n".join(for_instructors), "visibility": "hidden"})
    return {"output": record["problem"] or "", "execution_time": record["seconds"], "tests": tests}


if __name__ == "__main__":
    (found,) = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    Path(sys.argv[2]).write_text(json.dumps(results(found), indent=1), encoding="utf-8")
