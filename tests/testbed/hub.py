"""A strict stand-in of the hubs' programs, hf and modelscope, for nodes of tests."""

# Refuses what the real programs refuse: huggingface_hub 2.4.0, and modelscope 1.37.1 and 1.40.2,
# whose common options these are. What it does is in the file beside it, by the checkpoint's id.
HUB = r"""
import argparse, json, os, shutil, sys, time
from pathlib import Path

me = Path(sys.argv[0])
told = json.loads((me.parent.parent / "hub.json").read_text())
top = argparse.ArgumentParser(me.name, allow_abbrev=False)
download = top.add_subparsers(required=True).add_parser("download", allow_abbrev=False)
if me.name == "hf":
    download.add_argument("id")
    download.add_argument("--local-dir", dest="folder")
else:
    download.add_argument("--model", dest="id", required=True)
    download.add_argument("--local_dir", "--local-dir", dest="folder")
for option in ("--revision", "--token", "--include", "--exclude"):
    download.add_argument(option)
download.add_argument("--max-workers", type=int, default=8)
asked = top.parse_args()
with (me.parent.parent / "calls").open("a") as calls:
    keys = ("HF_HOME", "HF_ENDPOINT", "HF_XET_HIGH_PERFORMANCE")
    calls.write(json.dumps([sys.argv[1:], {key: os.environ.get(key) for key in keys}]) + "\n")
what = told.get(asked.id, "whole")
if told["hub"] != me.name and asked.id in told.get("only", {}):
    sys.exit(f"404 Client Error: {asked.id}")
if asked.folder:
    into = Path(asked.folder)
else:
    home = Path(os.environ["HF_HOME"]) / "hub" / f"models--{asked.id.replace('/', '--')}"
    into = home / "snapshots" / "abc"
    (home / "refs").mkdir(parents=True, exist_ok=True)
    (home / "refs" / "main").write_text("abc")
if what == "unreachable":
    error = "[Errno -2] Name or service not known"
    if me.name == "hf" and asked.folder and into.is_dir():
        # As seen with huggingface_hub 2.4.0: a warning, and the exit code 0.
        print(f"Returning existing local_dir `{into}` as remote repo cannot be accessed in "
              f"`snapshot_download` ({error}).", file=sys.stderr)
        sys.exit(0)
    sys.exit(f"error: [E1020] Connection failed: {error}")
if what == "gated":
    sys.exit("GatedRepoError: 401 Client Error. Access to model is restricted.")
into.mkdir(parents=True, exist_ok=True)
source = me.parent.parent / "source"
if what in ("half", "full"):
    shutil.copy(source / "config.json", into)
    shutil.copy(source / "model.safetensors.index.json", into)
    (into / "part.incomplete").write_bytes(bytes(5000))
    sys.exit("OSError: [Errno 28] No space left on device" if what == "full" else 130)
if what == "slow":
    time.sleep(2)
for path in source.iterdir():
    shutil.copy(path, into)
"""
