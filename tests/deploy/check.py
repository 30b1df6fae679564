"""Checks deploy/ with the checkers of others, offline; `make deploy-check` calls it in an environment that has them.

Kubernetes' own schemas (strict: an unknown field is an error), the models of JobSet's API, hadolint for the Dockerfile, shellcheck for
shell. What needs none of them is in test_deploy.py. The last line is "N passed, N failed".
"""

import pathlib
import subprocess
import sys

import kubernetes_validate
import yaml
from kubeflow_trainer_api.models import JobsetV1alpha2JobSet

DEPLOY = pathlib.Path(__file__).resolve().parents[2] / "deploy"
PROGRAMS = pathlib.Path(sys.executable).parent


def program(name, *arguments):
    """Runs a checker of this environment; raises with what it says if it finds something."""
    done = subprocess.run([PROGRAMS / name, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise ValueError(done.stdout)


def manifests(path):
    """(what, how) of every document of a file of Kubernetes, and of each Job in a JobSet."""
    for document in yaml.safe_load_all(path.read_text()):
        if document["kind"] != "JobSet":
            yield f"{document['kind']} {document['metadata']['name']}", lambda document=document: valid(document)
            continue
        yield "JobSet", lambda document=document: fits(document)
        for job in document["spec"]["replicatedJobs"]:
            named = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": job["name"]}}
            whole = named | {"spec": job["template"]["spec"]}
            yield f"Job {job['name']} of the JobSet", lambda whole=whole: valid(whole)


def valid(document):
    """Raises if Kubernetes would refuse it."""
    kubernetes_validate.validate(document, "1.34", strict=True)


def fits(document):
    """Raises if a JobSet has fields that its API has not."""
    model = JobsetV1alpha2JobSet.from_dict(document)
    if lost := unknown(document, model.to_dict(), ""):
        raise ValueError(f"JobSet has no {', '.join(lost)}")


def unknown(given, known, place):
    """The fields of JobSet's own that the model has dropped, as it does not know them."""
    if place.endswith(".template"):
        return []  # a Job, which has its own schema
    if isinstance(given, dict):
        lost = [f"{place}.{key}" for key in given if key not in known]
        return lost + [each for key in given if key in known for each in unknown(given[key], known[key], f"{place}.{key}")]
    if isinstance(given, list):
        return [each for one, other in zip(given, known) for each in unknown(one, other, place)]
    return []


def checks():
    """(what, how) of every check."""
    for path in sorted((DEPLOY / "kubernetes").glob("*.yaml")):
        for name, check in manifests(path):
            yield f"{path.name}: {name}", check
    yield "Dockerfile", lambda: program("hadolint", DEPLOY / "Dockerfile")
    for path in sorted(DEPLOY.rglob("*.sbatch")):
        yield path.name, lambda path=path: program("shellcheck", "--shell=bash", path)


def main():
    passed = failed = 0
    for what, check in checks():
        try:
            check()
        except (ValueError, kubernetes_validate.ValidationError) as error:
            failed += 1
            print(f"{what}: {error}")
        else:
            passed += 1
            print(f"{what}: ok")
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed or not passed else 0)


if __name__ == "__main__":
    main()
