"""The simulation: seeds of operations, faults and crashes over the whole stack below the doors, each equal to its model."""
import json
import re

from harness import REPO, Failed, test


def built(t):
    """Builds the simulation; gives the program."""
    out = t.run(
        "cargo", "test", "--locked", "--workspace", "--test", "sim", "--no-run", "--message-format=json", limit=1500,
        quiet=True, cwd=REPO,
    )
    for line in out.splitlines():
        if line.startswith("{"):
            message = json.loads(line)
            if message.get("executable") and message["target"]["name"] == "sim":
                return message["executable"]
    raise Failed("cargo did not say where the simulation is")


@test("seeds of 500 operations with faults and crashes equal the model", limit=1800, long_limit=7200, needs="pool")
def seeds(t):
    first, last = t.pick(100, 0), t.pick(300, 2000)
    out = t.run(built(t), "seeds", f"{first}..{last}", limit=t.pick(900, 6600), cwd=REPO, check=False)
    failed = re.search(r"^failed seeds: (.*)$", out, re.M)
    t.check(not failed, f"these failed: {failed and failed.group(1)}")
    good = re.search(r"^(\d+) of (\d+) seeds equal the model$", out, re.M)
    t.check(good and good.group(1) == good.group(2) == str(last - first), "not every seed came to its end")
    t.check("a kind that never happened" not in out, "a kind of fault or operation never happened")
    faults = re.search(r"^fault: (.*)$", out, re.M).group(1)
    crashes = re.search(r"\bcrash (\d+)", out).group(1)
    t.note(f"{good.group(1)} seeds, {crashes} crashes, {sum(map(int, re.findall(r'[0-9]+', faults)))} faults")
