"""Use the built wheels as somebody does who has no clone: in an environment of their own, in a folder of its own.

python tools/try_wheel.py [FOLDER]                   certified-cascade, with the packages of this environment: seconds
python tools/try_wheel.py --from-nothing [FOLDER]    certified-cascade-core in an empty environment: a minute

The wheels lie in FOLDER (dist/), where tools/distributions.py builds them. Both ways run examples/ask.py, read its
traces with the command line, and ask one question of a real local model, which `cascade models pull smollm2-135m`
fetches. From nothing, what the local model and litellm need is installed by the commands that the errors show.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

from install_size import empty_environment, install

ROOT = Path(__file__).parent.parent
ONE_REAL_QUESTION = ("demo", "--tiny", "--requests", "1")
HOSTED = """
models: {base: openai/gpt-4o-mini, guide: openai/gpt-4o}
provider: litellm
"""


class Trial:
    """An environment with the wheel, and an empty folder to work in."""

    def __init__(self, scratch: Path, python: Path) -> None:
        self.python = python
        self.folder = scratch / "elsewhere"
        self.folder.mkdir()
        self.store = f"sqlite:///{self.folder / 'traces.db'}"

    def run(self, *command: str | Path, code: int = 0) -> str:
        """Run a command in the folder; return what it printed, or end where its exit code is another."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "CASCADE"))}
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=inherited | {"CASCADE_TRACES": self.store},
            check=False,
            capture_output=True,
            text=True,
        )
        if done.returncode != code:
            shown = " ".join(map(str, command))
            sys.exit(f"{shown} ended with {done.returncode}, not {code}:\n{done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    def cascade(self, *arguments: str, code: int = 0) -> str:
        """Run the command line."""
        return self.run(self.python.parent / "cascade", *arguments, code=code)

    def refused(self, *arguments: str) -> str:
        """Run a command line that needs an extra; return the requirement that its error says to install."""
        output = " ".join(self.cascade(*arguments, code=2).split())
        match = re.search(r'pip install "([\w-]+\[\w+\])"', output)
        return match[1] if match else sys.exit(f"cascade {' '.join(arguments)} names no pip command:\n{output}")


def of_python(trial: Trial) -> None:
    """Import the wheel's package, not a clone's; run an example; read its traces."""
    where = trial.run(trial.python, "-c", "import cascade; print(cascade.__file__)").strip()
    if not Path(where).is_relative_to(trial.python.parent.parent):
        sys.exit(f"cascade was imported from {where}, not from the wheel")
    example = trial.folder / "ask.py"
    script = (ROOT / "examples" / "ask.py").read_text("utf-8")
    example.write_text(script.replace('"traces": "off"', f'"traces": "{trial.store}"'), "utf-8")
    print(trial.run(trial.python, example).strip())
    trial.cascade("traces", "stats", "--store", trial.store)


def borrowing(wheel: Path, scratch: Path) -> None:
    """Try a wheel in an environment that sees the packages of the one that runs this, except its cascade."""
    venv.create(scratch / "environment", with_pip=False)
    python = scratch / "environment" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python)]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--no-index", str(wheel)], check=True)
    (site,) = (scratch / "environment").glob("lib/python*/site-packages")
    # The .pth files of a folder that is named in a .pth file are not read: an editable cascade stays unseen.
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib"), "utf-8")
    trial = Trial(scratch, python)
    of_python(trial)
    print(trial.cascade(*ONE_REAL_QUESTION).splitlines()[-1])


def from_nothing(core: Path, scratch: Path) -> None:
    """Try certified-cascade-core in an empty environment, and add what its errors ask for."""
    python = empty_environment(scratch / "environment")
    install(python, str(core))
    trial = Trial(scratch, python)
    of_python(trial)
    local = trial.refused(*ONE_REAL_QUESTION)
    install(python, local)
    print(f"installed, as the error said: {local}")
    print(trial.cascade(*ONE_REAL_QUESTION).splitlines()[-1])
    (trial.folder / "cascade.yaml").write_text(HOSTED, "utf-8")
    hosted = trial.refused("ask", "Which river runs through Vienna?")
    install(python, hosted)
    print(f"installed, as the error said: {hosted}")
    trial.run(python, "-c", "from cascade import Orchestrator; Orchestrator.from_config('cascade.yaml').close()")


def main() -> None:
    """Try one wheel; end with 1 and what was printed where something fails."""
    arguments = sys.argv[1:]
    thorough = "--from-nothing" in arguments
    folder = Path(next((argument for argument in arguments if not argument.startswith("-")), "dist")).absolute()
    wheel = next(folder.glob("certified_cascade_core-*.whl" if thorough else "certified_cascade-*.whl"))
    with tempfile.TemporaryDirectory() as scratch:
        (from_nothing if thorough else borrowing)(wheel, Path(scratch))
    print(f"{wheel.name} works")


if __name__ == "__main__":
    main()
