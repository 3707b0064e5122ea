"""Gradescope's results.json from what `ep-lib grade EXERCISE --all DIR --json` says of one submission.

python to_results.py grade.json results.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def results(record: dict[str, Any]) -> dict[str, Any]:
    """A test of Gradescope's for each task.

    Gradescope shows no result without a score. So what could not be graded has 0, and says in the name of its only test
    that this is no grade; find these by their output, "Not graded", and let the autograder run again.
    """
    for_instructors = "\n".join([*record["flags"], *record["not_enforced"]])
    hidden = [{"name": "for the instructor", "output": for_instructors, "visibility": "hidden"}]
    if "error" in record:
        said = f"Not graded, and this 0 is no grade: {record['error']}"
        only = {"name": "NOT GRADED", "status": "failed", "output": said, "visibility": "visible"}
        tests = [only, *(hidden if for_instructors else [])]
        return {"score": 0, "output": said, "tests": tests, "extra_data": {"graded": False}}
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
    tests += hidden if for_instructors else []
    return {"output": record["problem"] or "", "execution_time": record["seconds"], "tests": tests}


if __name__ == "__main__":
    (found,) = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    Path(sys.argv[2]).write_text(json.dumps(results(found), indent=1), encoding="utf-8")
