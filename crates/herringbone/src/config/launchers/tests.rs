//! Recorded environments of `testdata/launchers`, and the places that they are.

use super::{RdzvHint, find, missing_launcher, reducers};
use crate::{
    ErrorKind,
    config::{Config, Rendezvous, environment::Environment},
};
use std::{collections::BTreeMap, fs, path::PathBuf};

/// Names and values.
type Variables<'a> = &'a [(&'a str, &'a str)];

/// The variables of a record, with these in addition or instead.
fn record(name: &str, more: Variables<'_>) -> Environment {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../testdata/launchers")
        .join(format!("{name}.env"));
    let text = fs::read_to_string(path).unwrap();
    let lines = text.lines().map(|line| line.split_once('=').unwrap());
    let variables: BTreeMap<&str, &str> = lines.chain(more.iter().copied()).collect();
    Environment::of(variables)
}

/// The error of a record that is no place.
fn refused(environment: &Environment) -> String {
    let error = Config::from_environment(environment).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Config { .. }), "{error}");
    error.to_string()
}

fn machine(job: &str) -> RdzvHint {
    RdzvHint::Machine(Some(job.to_owned()))
}

fn at(address: &str) -> RdzvHint {
    RdzvHint::Address(address.to_owned())
}

#[test]
fn each_record_is_its_place() {
    let one_of_three = Some((1, 3));
    let cases = [
        ("torchrun", "torchrun", (1, 3), one_of_three, RdzvHint::Unknown),
        ("kubeflow-torchrun", "torchrun", (4, 8), Some((0, 4)), RdzvHint::Unknown),
        ("ray-train", "the environment", (3, 4), Some((1, 2)), RdzvHint::Unknown),
        ("horovod", "Horovod", (1, 3), one_of_three, machine("HOROVOD_GLOO_RENDEZVOUS_PORT=35517")),
        ("open-mpi-nodes", "Open MPI", (4, 6), one_of_three, RdzvHint::Unknown),
        ("mpich", "MPICH (PMI)", (1, 3), one_of_three, RdzvHint::Machine(None)),
        ("mpich-in-slurm", "MPICH (PMI)", (1, 3), one_of_three, RdzvHint::Machine(None)),
        ("slurm-pmi2", "MPICH (PMI)", (1, 3), None, machine("slurm 4.0")),
        ("slurm", "Slurm", (1, 3), one_of_three, machine("slurm 3.0")),
        ("slurm-nodes", "Slurm", (5, 7), Some((1, 2)), at("node01:10393")),
        ("kubeflow", "Kubeflow Trainer", (1, 4), None, at("train-node-0-0.train:29400")),
        ("jobset", "Kubernetes", (2, 4), None, RdzvHint::Unknown),
        ("vertex", "Vertex AI", (2, 3), None, at("cmle-training-workerpool0-4242-0:2222")),
        ("ps-lite", "ps-lite", (1, 3), None, machine("ps-lite 9091")),
        ("byteps", "ps-lite", (3, 4), one_of_two(), RdzvHint::Unknown),
    ];
    for (name, launcher, place, local, rendezvous) in cases {
        let found = find(&record(name, &[])).unwrap().unwrap();
        assert_eq!(
            (found.launcher, (found.rank, found.world), found.local),
            (launcher, place, local),
            "{name}"
        );
        assert_eq!(found.rendezvous, rendezvous, "{name}");
    }
    for name in ["open-mpi", "open-mpi-in-slurm"] {
        let found = find(&record(name, &[])).unwrap().unwrap();
        assert_eq!((found.launcher, found.rank, found.world, found.local), ("Open MPI", 1, 3, one_of_three));
        let RdzvHint::Machine(Some(job)) = found.rendezvous else { panic!("{name}: {:?}", found.rendezvous) };
        assert!(job.starts_with("PMIX_NAMESPACE="), "{job}");
    }
}

fn one_of_two() -> Option<(u32, u32)> {
    Some((1, 2))
}

#[test]
fn ranks_of_one_machine_need_no_address() {
    for name in [
        "open-mpi",
        "open-mpi-in-slurm",
        "mpich",
        "mpich-in-slurm",
        "slurm",
        "slurm-pmi2",
        "horovod",
        "ps-lite",
    ] {
        let config = Config::from_environment(&record(name, &[])).unwrap();
        assert!(matches!(config.rendezvous, Rendezvous::Store { host: None, .. }), "{name}: {config:?}");
        assert_eq!((config.rank, config.world), (1, 3));
    }
}

#[test]
fn rank_0_listens_where_it_is_said_and_torchruns_port_is_left_alone() {
    for (name, more, expected) in [
        ("slurm-nodes", &[][..], "node01:10393"),
        ("slurm-nodes", &[("MASTER_ADDR", "a"), ("MASTER_PORT", "7")], "a:7"),
        ("slurm-nodes", &[("HERRINGBONE_STORE", "b:8"), ("MASTER_ADDR", "a"), ("MASTER_PORT", "7")], "b:8"),
        ("open-mpi-nodes", &[("MASTER_ADDR", "fd00::2"), ("MASTER_PORT", "7")], "[fd00::2]:7"),
        ("open-mpi", &[("HERRINGBONE_STORE", "b:8")], "b:8"),
        ("jobset", &[], "train-workers-0-0.train:29400"),
        ("kubeflow", &[], "train-node-0-0.train:29400"),
        ("vertex", &[], "cmle-training-workerpool0-4242-0:2222"),
        ("torchrun", &[("HERRINGBONE_STORE", "b:8")], "b:8"),
        ("torchrun", &[("TORCHELASTIC_USE_AGENT_STORE", "False")], "localhost:37199"),
    ] {
        let config = Config::from_environment(&record(name, more)).unwrap();
        assert!(
            matches!(&config.rendezvous, Rendezvous::Tcp(address) if address == expected),
            "{name}: {config:?}"
        );
    }
    for name in ["torchrun", "kubeflow-torchrun"] {
        let config = Config::from_environment(&record(name, &[])).unwrap();
        assert!(matches!(config.rendezvous, Rendezvous::Store { host: Some(_), .. }), "{name}: {config:?}");
    }
}

#[test]
fn what_is_not_said_is_asked_for() {
    let cases: [(&str, Variables<'_>, &[&str]); 12] = [
        (
            "open-mpi-nodes",
            &[],
            &["HERRINGBONE_STORE: set it to host:port of rank 0", "OMPI_COMM_WORLD_RANK=4"],
        ),
        ("byteps", &[], &["HERRINGBONE_STORE: set it", "ps-lite sets rank 3 of 4 (DMLC_WORKER_ID=1"]),
        (
            "kubernetes",
            &[],
            &["JOB_COMPLETION_INDEX", "pod 2", "set HERRINGBONE_WORLD_SIZE", "HERRINGBONE_STORE"],
        ),
        ("vertex-reducer", &[], &["CLUSTER_SPEC", "replica 0 of workerpool2", "`herringbone serve`"]),
        (
            "ps-lite",
            &[("DMLC_ROLE", "server")],
            &["DMLC_ROLE", "`kvstore.create` serves", "`herringbone serve`"],
        ),
        ("ps-lite", &[("DMLC_ROLE", "scheduler")], &["start no scheduler"]),
        ("ps-lite", &[("DMLC_WORKER_ID", "")], &["needs DMLC_WORKER_ID and DMLC_NUM_WORKER"]),
        ("kubeflow", &[("PET_NPROC_PER_NODE", "4")], &["PET_NPROC_PER_NODE", "with torchrun"]),
        ("kubeflow", &[("PET_NNODES", "1:4")], &["PET_NNODES", "with torchrun"]),
        ("mpich", &[("PMI_SIZE", "")], &["PMI_RANK", "not PMI_SIZE", "set HERRINGBONE_RANK"]),
        ("slurm-nodes", &[("SLURM_STEP_NODELIST", "node[")], &["SLURM_STEP_NODELIST", "HERRINGBONE_STORE"]),
        (
            "open-mpi",
            &[("OMPI_COMM_WORLD_RANK", "first")],
            &["OMPI_COMM_WORLD_RANK", "\"first\"", "a number"],
        ),
    ];
    for (name, more, parts) in cases {
        let text = refused(&record(name, more));
        assert!(parts.iter().all(|part| text.contains(part)), "{name}: {text}");
    }
}

#[test]
fn launchers_that_contradict_each_other_are_named_with_their_values() {
    let cases: [(&str, Variables<'_>, &[&str]); 6] = [
        (
            "open-mpi",
            &[("RANK", "0"), ("WORLD_SIZE", "2")],
            &[
                "RANK: the environment sets rank 0 of 2 (RANK=0, WORLD_SIZE=2), but Open MPI sets rank 1 of 3 (OMPI_COMM",
            ],
        ),
        ("open-mpi", &[("WORLD_SIZE", "2")], &["Open MPI sets rank 1 of 3", "but WORLD_SIZE=2: "]),
        ("slurm", &[("RANK", "0")], &["Slurm sets rank 1 of 3", "but RANK=0: "]),
        // As many jobs as Slurm has tasks.
        (
            "mpich",
            &[("SLURM_STEP_ID", "0"), ("SLURM_PROCID", "1"), ("SLURM_STEP_NUM_TASKS", "4")],
            &["but Slurm sets"],
        ),
        (
            "torchrun",
            &[("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2")],
            &["torchrun sets", "but Open MPI"],
        ),
        (
            "jobset",
            &[("RANK", "0")],
            &["but Kubernetes sets rank 2 of 4 (JOB_COMPLETION_INDEX=2, WORLD_SIZE=4)"],
        ),
    ];
    for (name, more, parts) in cases {
        let text = refused(&record(name, more));
        assert!(parts.iter().all(|part| text.contains(part)), "{name}: {text}");
        assert!(
            text.contains("set HERRINGBONE_RANK and HERRINGBONE_WORLD_SIZE, which override both"),
            "{text}"
        );
        let ours = [("HERRINGBONE_RANK", "2"), ("HERRINGBONE_WORLD_SIZE", "5")];
        let found = find(&record(name, &[more, &ours[..]].concat())).unwrap().unwrap();
        assert_eq!((found.rank, found.world), (2, 5));
    }
}

#[test]
fn a_launcher_that_another_one_starts_counts() {
    let cases: [(&str, Variables<'_>, &str); 6] = [
        // torchrun on each of Slurm's nodes, or of an MPI's.
        (
            "kubeflow-torchrun",
            &[("SLURM_STEP_ID", "0"), ("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "2")],
            "torchrun",
        ),
        ("kubeflow-torchrun", &[("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2")], "torchrun"),
        // A shell, or a daemon for each machine, that srun has started.
        (
            "open-mpi",
            &[("SLURM_STEP_ID", "0"), ("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "1")],
            "Open MPI",
        ),
        (
            "open-mpi-nodes",
            &[
                ("SLURM_STEP_ID", "0"),
                ("SLURM_PROCID", "1"),
                ("SLURM_STEP_NUM_TASKS", "2"),
                ("HERRINGBONE_STORE", "a:7"),
            ],
            "Open MPI",
        ),
        // A script that passes on what srun says.
        ("slurm", &[("RANK", "1"), ("WORLD_SIZE", "3")], "the environment"),
        ("slurm", &[("WORLD_SIZE", "3")], "Slurm"),
    ];
    for (name, more, launcher) in cases {
        let environment = record(name, more);
        assert_eq!(find(&environment).unwrap().unwrap().launcher, launcher, "{name}");
        Config::from_environment(&environment).unwrap();
    }
}

#[test]
fn a_batch_script_is_no_task_and_is_suspicious() {
    let batch = record("slurm-batch", &[]);
    assert_eq!(find(&batch).unwrap(), None);
    assert!(
        missing_launcher(&batch)
            .unwrap()
            .unwrap()
            .contains("3 tasks (SLURM_NTASKS), and only srun starts them")
    );
    assert_eq!(missing_launcher(&record("slurm-batch", &[("SLURM_NTASKS", "1")])).unwrap(), None);
    assert_eq!(missing_launcher(&record("slurm", &[])).unwrap(), None);
}

#[test]
fn pool_2_of_vertex_has_the_reducers() {
    let two = ["cmle-training-workerpool2-4242-0:2222", "cmle-training-workerpool2-4242-1:2222"];
    let vertex = record("vertex", &[]);
    assert_eq!(reducers(&vertex).unwrap(), two);
    assert_eq!(Config::from_environment(&vertex).unwrap().reducers, two);
    let ours = record("vertex", &[("HERRINGBONE_REDUCERS", "a:1")]);
    assert_eq!(Config::from_environment(&ours).unwrap().reducers, ["a:1"]);
    for other in
        ["{}", "no JSON", r#"{"cluster": {"chief": ["a:1"]}, "task": {"type": "chief", "index": 0}}"#]
    {
        let environment = Environment::of([("CLUSTER_SPEC", other)]);
        assert_eq!(
            (find(&environment).unwrap(), reducers(&environment).unwrap()),
            (None, Vec::new()),
            "{other}"
        );
    }
}

/// What the job of a record is called where the ranks are those of its launcher, in order.
#[test]
fn each_record_has_the_names_of_its_job() {
    let cases: [(&str, &[&str]); 9] = [
        ("torchrun", &["TORCHELASTIC_RUN_ID=2e8b5592-bf86-4b0f-92ce-4dba207372ed"]),
        // Without an id all jobs of torchrun are called alike.
        ("kubeflow-torchrun", &[]),
        ("horovod", &["HOROVOD_GLOO_RENDEZVOUS_PORT=35517"]),
        ("open-mpi-in-slurm", &["PMIX_NAMESPACE=942014465", "SLURM_JOB_ID=5"]),
        ("mpich", &[]),
        ("mpich-in-slurm", &["SLURM_JOB_ID=5"]),
        ("slurm-pmi2", &["PMI_JOBID=4.0", "SLURM_JOB_ID=4"]),
        ("slurm", &["SLURM_STEP_ID=3.0", "SLURM_JOB_ID=3"]),
        ("vertex", &["CLOUD_ML_JOB_ID=4242"]),
    ];
    let names = |environment: &Environment| {
        // Where the ranks meet is no matter here.
        let place = find(environment).unwrap().unwrap();
        let rendezvous = Rendezvous::Tcp(String::new());
        let config = Config::new(place.rank, place.world, rendezvous).with_environment(environment).unwrap();
        config.job.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    for (name, expected) in cases {
        assert_eq!(names(&record(name, &[])), expected, "{name}");
    }
    // Ranks of a program's own may belong to several steps of one job.
    let other = Config::new(0, 9, Rendezvous::Tcp(String::new())).with_environment(&record("slurm", &[]));
    assert_eq!(other.unwrap().job.iter().map(ToString::to_string).collect::<Vec<_>>(), ["SLURM_JOB_ID=3"]);
    let own = names(&record("slurm", &[("HERRINGBONE_JOB", "mine")]));
    assert_eq!(own, ["HERRINGBONE_JOB=mine", "SLURM_STEP_ID=3.0", "SLURM_JOB_ID=3"]);
    let long = names(&record("slurm", &[("PBS_JOBID", &format!("{}ä\tend", "x".repeat(200)))]));
    assert!(long[2].ends_with("xä end") && long[2].len() <= "PBS_JOBID=".len() + 128, "{long:?}");
}
