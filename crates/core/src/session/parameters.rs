//! The values that rank 0 decides for a group. They travel once per group, in a message of their own.

use super::{
    basis::{Difference, differences, digest_of},
    codec::{ALGORITHM_BYTES, Malformed, Reader, Writer},
};
use crate::{group::FoldOrder, topology::Wiring, wire::digest};
use alloc::{
    format,
    string::{String, ToString},
    sync::Arc,
    vec::Vec,
};

/// How long they are at most, in bytes.
pub const PARAMETERS_BYTES: usize = 64 << 10;

/// The values that all members of a group use, as rank 0 has decided.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parameters {
    /// The source of fold keys.
    pub order: FoldOrder,
    /// The algorithm that is forced for all-reduces, if one is.
    pub algorithm: Option<String>,
    /// The transport that is forced, if one is.
    pub transport: Option<String>,
    /// The preferred bytes of a segment; 0 leaves it to the transport.
    pub segment: u64,
    /// The staging pool of each process, in bytes.
    pub staging: u64,
    /// The addresses of the reducers, in the order in which schedules number them.
    pub reducers: Vec<String>,
    /// A digest of the constants by which the build cuts messages.
    pub cutting: u64,
    /// The known links between all ranks of the job, and the ports of their hosts.
    pub wiring: Wiring,
    /// Whether the ranks measure the links once the group is there; then they know the [`wiring`](Self::wiring). And whether they
    /// follow their hosts' ports later.
    pub measuring: Measuring,
    /// Up to how many elements one tree carries the whole buffer.
    pub tree_bound: u64,
    /// The user's rules for the choice of algorithms.
    pub plan: PlanText,
    /// The numbers of the machines' constants, if times decide.
    pub calibration: Vec<u64>,
}

/// The user's rules for the choice of algorithms, as rank 0 sends them to all ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanText {
    /// The rules, each as a text.
    pub rules: Vec<String>,
    /// The contents of the files that rules name, in their order.
    pub files: Arc<[FileText]>,
}

/// The schedule of a file, as rank 0 has read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileText {
    /// Its text form. All files together have at most [`FILES_BYTES`].
    pub text: String,
    /// The digest of the schedule and of its proof, as rank 0 has found it. Each rank compares its own.
    pub digest: u64,
}

/// How long the schedules of files are at most, all together, in bytes.
pub const FILES_BYTES: usize = 512 << 10;

/// When the ranks of a job measure the ways between them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Measuring {
    /// Links and ports, before the first call.
    pub at_start: bool,
    /// Ports, by the traffic of calls. Plans then [follow](super::rebalance) ports that become slow or fast.
    pub while_running: bool,
}

/// The default number of elements up to which one tree carries the whole buffer, as in MXNet.
pub const TREE_BOUND: u64 = 10_000_000;

/// The topology of a job whose ranks measure their links.
pub const MEASURE: &str = "measure";

impl Parameters {
    /// A digest that differs from that of other parameters.
    pub fn digest(&self) -> u64 {
        digest_of(self.items())
    }

    /// The differences to others, by the names of their settings if they have one.
    pub fn difference(&self, other: &Self) -> Vec<Difference> {
        differences(self.items(), other.items())
    }

    /// A digest of links and ports, for the inputs of plans.
    pub fn topology(&self) -> Option<u64> {
        self.wiring.to_bytes().map(|bytes| digest(&bytes))
    }

    fn items(&self) -> [(&'static str, String); 13] {
        let Self { order, algorithm, transport, segment, staging, reducers, cutting, .. } = self;
        [
            ("HERRINGBONE_FOLD_ORDER", order.name().into()),
            ("HERRINGBONE_ALGORITHM", algorithm.clone().unwrap_or_default()),
            ("HERRINGBONE_TRANSPORT", transport.clone().unwrap_or_default()),
            ("HERRINGBONE_REDUCERS", reducers.join(",")),
            ("HERRINGBONE_SLICE_BYTES", segment.to_string()),
            ("HERRINGBONE_STAGING_BYTES", staging.to_string()),
            (CUTTING, format!("{cutting:016x}")),
            (
                "HERRINGBONE_TOPOLOGY",
                match self.topology() {
                    Some(digest) => format!("{digest:016x}"),
                    None if self.measuring.at_start => MEASURE.into(),
                    None => "none".into(),
                },
            ),
            ("HERRINGBONE_REBALANCE", u8::from(self.measuring.while_running).to_string()),
            ("HERRINGBONE_TREE_ARRAY_BOUND", self.tree_bound.to_string()),
            ("HERRINGBONE_PLAN", self.plan.shown()),
            ("HERRINGBONE_CALIBRATION", digest_of_numbers(&self.calibration)),
            (ROUND_TRIPS, {
                let numbers: Vec<u64> =
                    self.wiring.round_trips.numbers().iter().map(|time| u64::from(*time)).collect();
                digest_of_numbers(&numbers)
            }),
        ]
    }

    pub(super) fn write(&self, to: &mut Writer) {
        to.part("the parameters of a group", PARAMETERS_BYTES, |to| {
            to.u8(self.order.code());
            to.option(self.algorithm.as_ref(), |to, name| {
                to.text_to("an algorithm's name", ALGORITHM_BYTES, name);
            });
            to.option(self.transport.as_ref(), |to, name| to.text("a transport's name", name));
            [self.segment, self.staging, self.cutting].into_iter().for_each(|number| to.u64(number));
            to.list("the list of reducers", &self.reducers, |to, address| {
                to.text("a reducer's address", address);
            });
            to.wiring(&self.wiring);
            self.measuring.write(to);
            to.u64(self.tree_bound);
            to.list("the rules of a plan", &self.plan.rules, |to, rule| {
                to.text_to("a rule of a plan", ALGORITHM_BYTES, rule);
            });
            to.list("the constants of machines", &self.calibration, |to, number| to.u64(*number));
        });
        to.part("the schedules of a plan's files", FILES_BYTES + FILES_FRAMING, |to| {
            to.list("the list of a plan's files", &self.plan.files, |to, file| {
                to.u64(file.digest);
                to.part("the schedule of a file", FILES_BYTES, |to| to.bytes(file.text.as_bytes()));
            });
        });
    }

    /// The same for a reducer, which runs no schedule of a file: without the texts of files.
    #[must_use]
    pub fn without_files(&self) -> Self {
        let bare = |file: &FileText| FileText { text: String::new(), ..*file };
        let plan =
            PlanText { rules: self.plan.rules.clone(), files: self.plan.files.iter().map(bare).collect() };
        Self { plan, ..self.clone() }
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut parameters = from.part(PARAMETERS_BYTES, |from| {
            let order = from.fold_order()?;
            let algorithm = from.option(|from| from.text_to(ALGORITHM_BYTES))?;
            let transport = from.option(Reader::text)?;
            let (segment, staging, cutting) = (from.u64()?, from.u64()?, from.u64()?);
            let reducers = from.list(Reader::text)?;
            let (wiring, measuring, tree_bound) = (from.wiring()?, Measuring::read(from)?, from.u64()?);
            let rules = from.list(|from| from.text_to(ALGORITHM_BYTES))?;
            let plan = PlanText { rules, files: Arc::default() };
            let calibration = from.list(Reader::u64)?;
            Ok(Self {
                order,
                algorithm,
                transport,
                segment,
                staging,
                reducers,
                cutting,
                wiring,
                measuring,
                tree_bound,
                plan,
                calibration,
            })
        })?;
        let files = from.part(FILES_BYTES + FILES_FRAMING, |from| from.list(FileText::read))?;
        if files.iter().map(|file| file.text.len()).sum::<usize>() > FILES_BYTES {
            return Err(Malformed("the schedules of its files are too long"));
        }
        parameters.plan.files = files.into();
        Ok(parameters)
    }
}

/// What the list of files takes in a message beside their texts, at most.
const FILES_FRAMING: usize = 4 << 10;

impl FileText {
    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let digest = from.u64()?;
        let text = from.part(FILES_BYTES, |from| {
            let bytes = from.bytes(from.0.len())?;
            core::str::from_utf8(bytes).map(String::from).map_err(|_| Malformed("a text is not UTF-8"))
        })?;
        Ok(Self { text, digest })
    }
}

impl PlanText {
    /// What tells it apart from others, as people compare it.
    fn shown(&self) -> String {
        let digests = self.files.iter().map(|file| format!(" (digest {:016x})", file.digest));
        digests.fold(self.rules.join(","), |shown, digest| shown + &digest)
    }
}

impl Measuring {
    pub(super) fn write(self, to: &mut Writer) {
        to.bool(self.at_start);
        to.bool(self.while_running);
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self { at_start: from.bool()?, while_running: from.bool()? })
    }
}

/// Constants of machines as people compare them.
fn digest_of_numbers(numbers: &[u64]) -> String {
    if numbers.is_empty() {
        return "none".into();
    }
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    format!("{:016x}", digest(&bytes))
}

/// What the round trips of a world are called.
const ROUND_TRIPS: &str = "the round trips to rank 0";

/// What the constants of a build are called.
pub(super) const CUTTING: &str = "the build's cutting constants";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::{LinkMatrix, Port, Ports, RoundTrips, Sites};

    fn parameters() -> Parameters {
        Parameters {
            algorithm: Some("ring".into()),
            segment: 4096,
            staging: 64 << 20,
            reducers: ["a:1", "b:2"].map(String::from).into(),
            cutting: 9,
            ..Parameters::default()
        }
    }

    #[test]
    fn whatever_differs_is_named_with_both_values() {
        type Change = fn(&mut Parameters);
        let links = LinkMatrix::uniform(2, 1.0);
        let topology = format!("{:016x}", digest(&links.to_bytes()));
        let calibration = digest_of_numbers(&[1]);
        let ports = || Some(Ports::uniform(2, Port { out: 1000, into: 2000 }));
        let with_ports = format!("{:016x}", digest(&ports().unwrap().to_bytes()));
        let sites = || Sites::new(vec![0, 1], vec![Port { out: 1000, into: 0 }; 2]).unwrap();
        let with_sites = ports().unwrap().with_sites(sites()).unwrap();
        let with_sites = format!("{:016x}", digest(&with_sites.to_bytes()));
        let round_trips = digest_of_numbers(&[0, 4_096]);
        let changes: [(&str, &str, &str, Change); 17] = [
            ("HERRINGBONE_FOLD_ORDER", "ranks", "hosts", |other| other.order = FoldOrder::Hosts),
            ("HERRINGBONE_ALGORITHM", "ring", "", |other| other.algorithm = None),
            ("HERRINGBONE_TRANSPORT", "", "tcp", |other| other.transport = Some("tcp".into())),
            ("HERRINGBONE_REDUCERS", "a:1,b:2", "a:1", |other| drop(other.reducers.pop())),
            ("HERRINGBONE_SLICE_BYTES", "4096", "0", |other| other.segment = 0),
            ("HERRINGBONE_STAGING_BYTES", "67108864", "1", |other| other.staging = 1),
            (CUTTING, "0000000000000009", "000000000000000a", |other| other.cutting = 10),
            ("HERRINGBONE_TOPOLOGY", "none", &topology, |other| {
                other.wiring = LinkMatrix::uniform(2, 1.0).into()
            }),
            ("HERRINGBONE_TOPOLOGY", "none", &with_ports, |other| {
                other.wiring.ports = Some(Ports::uniform(2, Port { out: 1000, into: 2000 }))
            }),
            ("HERRINGBONE_TOPOLOGY", "none", &with_sites, |other| {
                let ports = Ports::uniform(2, Port { out: 1000, into: 2000 });
                let sites = Sites::new(vec![0, 1], vec![Port { out: 1000, into: 0 }; 2]).unwrap();
                other.wiring.ports = Some(ports.with_sites(sites).unwrap())
            }),
            ("HERRINGBONE_TOPOLOGY", "none", MEASURE, |other| other.measuring.at_start = true),
            ("HERRINGBONE_REBALANCE", "0", "1", |other| other.measuring.while_running = true),
            ("HERRINGBONE_TREE_ARRAY_BOUND", "0", "7", |other| other.tree_bound = 7),
            ("HERRINGBONE_PLAN", "", "a,b", |other| other.plan.rules = ["a", "b"].map(String::from).into()),
            ("HERRINGBONE_PLAN", "", " (digest 0000000000000009)", |other| {
                other.plan.files = [FileText { text: "schedule".into(), digest: 9 }].into()
            }),
            ("HERRINGBONE_CALIBRATION", "none", &calibration, |other| other.calibration = vec![1]),
            (ROUND_TRIPS, "none", &round_trips, |other| {
                other.wiring.round_trips = RoundTrips::new(&[0, 4_100], &[0, 1])
            }),
        ];
        for (name, ours, theirs, change) in changes {
            let mut other = parameters();
            change(&mut other);
            let expected = Difference { name, ours: ours.into(), theirs: theirs.into() };
            assert_eq!(parameters().difference(&other), [expected]);
            assert_ne!(parameters().digest(), other.digest(), "{name}");
        }
        assert_eq!(parameters().difference(&parameters()), []);
    }
}
