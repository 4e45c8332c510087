#!/usr/bin/env python3
"""Say that the published quantization of Kimi-K2-Thinking is of the experts, or undo it.

    python edit_quantization_target.py apply  /path/to/Kimi-K2-Thinking
    python edit_quantization_target.py revert /path/to/Kimi-K2-Thinking
    python edit_quantization_target.py show   /path/to/Kimi-K2-Thinking
    python edit_quantization_target.py look   /path/to/Kimi-K2-Thinking   # 3: to be applied

The checkpoint's config.json names ``Linear`` as the target of its quantization group;
vLLM-Ascend has a scheme for it only when the target is ``MoE``. A second run changes nothing
and says so; ``revert`` brings the file back byte for byte. Standard library only.
"""

import argparse
import json
import os
import sys
import tempfile

BEFORE, AFTER = ["Linear"], ["MoE"]
TO_BE_APPLIED = 3  # the exit code of look
KEYS = ("quantization_config", "config_groups", "group_0", "targets")
BACKUP = ".before-quantization-edit"


def targets(config):
    """The list at quantization_config.config_groups.group_0.targets; KeyError where none is."""
    for key in KEYS:
        config = config[key]
    return config


def with_targets(text, new):
    """The file's text with other targets, two spaces a level as published."""
    config = json.loads(text)
    targets(config)[:] = new
    return json.dumps(config, indent=2, ensure_ascii=False) + "\n"


def replace(path, text):
    """Write beside, then rename: a reader sees the old file or the new one."""
    handle, fresh = tempfile.mkstemp(dir=os.path.dirname(path) or ".", prefix=".config.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            file.write(text)
        os.chmod(fresh, os.stat(path).st_mode & 0o777)
        os.replace(fresh, path)
    except BaseException:
        os.unlink(fresh)
        raise


def read(path, wanted, new):
    """The file's text and its targets; ValueError for a file that has something else there."""
    with open(path, encoding="utf-8", newline="") as file:
        text = file.read()
    try:
        found = targets(json.loads(text))
    except (KeyError, TypeError) as error:
        raise ValueError(f"no {'.'.join(KEYS)} in it ({error}); is it Kimi-K2-Thinking?") from None
    if found not in (wanted, new):
        raise ValueError(f"the targets are {found}; {wanted} or {new} is wanted here. "
                         "Nothing was changed.")
    return text, found


def change(path, wanted, new):
    """Bring the file to ``new`` targets; the sentence that says what happened.

    Raises ValueError for a file that has something else there.
    """
    text, found = read(path, wanted, new)
    if found == new:
        return f"No change: the targets are {new} already."
    backup = path + BACKUP
    if new == AFTER:
        with open(backup, "w", encoding="utf-8", newline="") as file:
            file.write(text)
        replace(path, with_targets(text, new))
        return f"Changed {wanted} to {new}; the old file is {backup}."
    if os.path.exists(backup):
        with open(backup, encoding="utf-8", newline="") as file:
            old = file.read()
        if with_targets(old, AFTER) == text:
            replace(path, old)
            os.unlink(backup)
            return f"Changed {wanted} back to {new}, byte for byte."
    # Someone edited other keys since: keep those, change this one.
    replace(path, with_targets(text, new))
    return f"Changed {wanted} back to {new}; other edits of the file were kept."


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=("apply", "revert", "show", "look"))
    parser.add_argument("folder", help="the folder that holds config.json")
    args = parser.parse_args(argv)
    path = os.path.join(args.folder, "config.json")
    try:
        if args.action == "show":
            with open(path, encoding="utf-8") as file:
                print(targets(json.load(file)))
        elif args.action == "look":
            found = read(path, BEFORE, AFTER)[1]
            print(f"the targets are {found}" + f", {AFTER} is wanted" * (found != AFTER))
            return 0 if found == AFTER else TO_BE_APPLIED
        else:
            steps = (BEFORE, AFTER) if args.action == "apply" else (AFTER, BEFORE)
            print(change(path, *steps))
    except json.JSONDecodeError as error:
        print(f"{path}: not JSON: {error}", file=sys.stderr)
        return 1
    except (OSError, ValueError, KeyError) as error:
        print(f"{path}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
