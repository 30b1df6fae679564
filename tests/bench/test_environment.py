"""tools/environment.py borrows a new enough torch of the Python that runs it, and changes nothing there; tools/install.py finds the
smaller torch."""

import pathlib
import shutil
import subprocess
import sys
import zipfile

import pytest

pytestmark = pytest.mark.full
ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "environment.py"


def lend(folder, version, available=True):
    """Gives an environment a torch of some version, which can train or not."""
    [packages] = folder.glob("lib/python*/site-packages")
    for old in packages.glob("torch*"):
        shutil.rmtree(old)
    for name, text in {
        "torch/__init__.py": f"from . import distributed\n__version__ = '{version}'\n",
        "torch/distributed/__init__.py": f"def is_available():\n    return {available}\n",
        "torch/distributed/run.py": "import sys\nprint(sys.prefix, sys.argv)\n",
        f"torch-{version}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n",
    }.items():
        (packages / name).parent.mkdir(parents=True, exist_ok=True)
        (packages / name).write_text(text)


def made_by(lender, folder, *options):
    """What the tool says when the lender's Python runs it."""
    done = subprocess.run([lender / "bin" / "python", TOOL, folder, *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def version_in(folder):
    """The version of torch that an environment has; empty without one."""
    program = "import torch; print(torch.__version__)"
    return subprocess.run([folder / "bin" / "python", "-c", program], capture_output=True, text=True).stdout.strip()


def test_torch_is_borrowed_if_it_is_new_enough_and_can_train(tmp_path, monkeypatch):
    pytest.importorskip("ensurepip", reason="without it pip would be downloaded")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    lender, folder = tmp_path / "lender", tmp_path / "made with a space"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", lender], check=True)
    for version, available in (("1.0", True), ("99.1", False)):
        lend(lender, version, available)
        assert "another one will be downloaded" in made_by(lender, folder)
        assert version_in(folder) == ""

    lend(lender, "99.1")
    files = sorted(lender.rglob("*"))
    said = f"torch 99.1 of {lender} is used; nothing is installed or changed there\n"
    assert (made_by(lender, folder), version_in(folder)) == (said, "99.1")
    torchrun = folder / "bin" / "torchrun"
    done = subprocess.run([torchrun, "two words"], capture_output=True, text=True)
    assert done.stdout == f"{folder} {[str(torchrun), 'two words']}\n", done.stderr
    stamp = (folder / "python.stamp").stat().st_mtime_ns
    assert made_by(lender, folder) == said
    assert (folder / "python.stamp").stat().st_mtime_ns == stamp, "make would install everything again"
    assert sorted(lender.rglob("*")) == files

    lend(folder, "98")
    assert made_by(lender, folder) == f"torch 98 is installed in {folder}\n"
    assert version_in(folder) == "98"


def test_an_environment_that_is_alone_borrows_nothing(tmp_path):
    pytest.importorskip("ensurepip", reason="without it pip would be downloaded")
    lender, folder = tmp_path / "lender", tmp_path / "made"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", lender], check=True)
    lend(lender, "99.1")
    assert made_by(lender, folder, "--alone") == f"{folder} is there, alone\n"
    assert version_in(folder) == ""
    stamp = (folder / "python.stamp").stat().st_mtime_ns
    made_by(lender, folder, "--alone")
    assert (folder / "python.stamp").stat().st_mtime_ns == stamp, "make would install everything again"


def wheels_of_torch(folder, *versions):
    """Wheels that pip can install, of a torch with nothing in it."""
    folder.mkdir()
    for version in versions:
        about = f"torch-{version}.dist-info"
        with zipfile.ZipFile(folder / f"torch-{version}-py3-none-any.whl", "w") as wheel:
            wheel.writestr("torch/__init__.py", f"__version__ = '{version}'\n")
            wheel.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
            wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{about}/RECORD", "")


@pytest.mark.parametrize(
    ("there", "taken"),
    [(["99.2", "99.1+cpu", "99.0+cpu"], "99.1+cpu"), (["99.2", "1.0+cpu"], "99.2")],
    ids=["a build for CPUs that is new enough", "none that is"],
)
def test_the_smaller_torch_is_taken_if_an_index_has_it(there, taken, tmp_path, monkeypatch):
    pytest.importorskip("ensurepip", reason="without it pip would be downloaded")
    if pathlib.Path("/proc/driver/nvidia").exists():
        pytest.skip("a machine with a GPU takes the build for GPUs")
    folder, requirements = tmp_path / "made", tmp_path / "requirements.txt"
    wheels_of_torch(tmp_path / "wheels", *there)
    requirements.write_text("# What is needed.\ntorch>=2.12\n")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    install = [folder / "bin" / "python", ROOT / "tools" / "install.py", requirements]
    done = subprocess.run(install, capture_output=True, text=True)
    assert (done.returncode, version_in(folder)) == (0, taken), done.stdout + done.stderr
    done = subprocess.run(install, capture_output=True, text=True)
    assert done.returncode == 0 and "torch:" not in done.stdout, "what is there stays"
