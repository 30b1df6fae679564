//! Modules import downwards: the order of each crate's modules and of the Python package's, and no circles of files.

use super::{
    imports::{self, Import, Module},
    none,
    source::{Source, sources},
};
use std::collections::BTreeSet;

/// The modules of a crate or package, a line for each level, from top to bottom. A module may import what stands in
/// lines below its own; modules of one line do not know each other. A folder stands for all files in it that have no
/// place of their own; among these, imports only must not go round in a circle.
struct Order {
    folder: &'static str,
    lines: &'static [&'static str],
}

const ORDERS: [Order; 9] = [
    Order {
        folder: "crates/core/src",
        lines: &[
            "lib",
            "search terms",
            "interpret named plan replay staging table training",
            "simulate",
            "execution",
            "prepare",
            "session verify",
            "algorithm wire",
            "collective",
            "schedule topology",
            "codec",
            "shards",
            "element group trace",
            "choice",
        ],
    },
    Order {
        folder: "crates/sys/src",
        lines: &[
            "lib",
            "cuda",
            "device",
            "codec heap signal",
            "checksum kernel region segment socket",
            "doorbell peer ring span",
            "copy fork interface pidfd plain sync",
        ],
    },
    Order {
        folder: "crates/herringbone/src",
        lines: &[
            "lib",
            // Processes for tests, in virtual time.
            "world",
            // Programs that continue where they were, and sums that do not depend on who carries what.
            "rabit shards",
            // Putting a process together.
            "joining ps_lite",
            "local",
            "assembly server",
            "calibrate measure",
            // What programs hold.
            "dependency device named table",
            "communicator",
            "work",
            // Questions to other processes.
            "status",
            // Connections and the control thread.
            "fabric",
            // Threads: which one drives, which one sleeps.
            "node",
            // What happens to an engine, and what becomes of it.
            "engine/control engine/flight engine/inbox engine/status engine/straight",
            "engine",
            "engine/waits",
            "engine/messages engine/recovery",
            "engine/begin engine/disband engine/fences engine/rebalance",
            "engine/introduced",
            // What operations run with.
            "engine/runtime",
            "engine/backlog engine/ops",
            "engine/queue",
            "engine/groups",
            "engine/failure",
            "engine/links",
            "engine/outbox",
            "engine/buffers engine/early engine/peer_waits engine/group engine/refused engine/rules engine/table engine/timers engine/footprints",
            "engine/counts engine/port_reports engine/reducer",
            "engine/plans",
            "engine/settings",
            // An operation that runs.
            "execute/step execute/straight",
            "execute/operation",
            // What it is made of before it runs.
            "execute",
            // What is written of that.
            "timeline",
            // What happens to it, told to those that count and listen.
            "observe",
            "execute/issue",
            // Another process: its link and its credits.
            "transport/stats",
            "transport/endpoint",
            "transport/shm transport/tcp",
            "transport",
            "completion config seen",
            "request",
            "flight residuals",
            "clock descriptors error feedback log rendezvous svg tcp_table user_file",
            "memory",
        ],
    },
    Order {
        folder: "crates/admin/src",
        lines: &[
            "lib",
            // When it begins, and what is answered.
            "start",
            "files pages",
            "metrics",
            "http/listener",
            "http",
            // What there is to show.
            "outlook",
            "watch",
            // Asking all members, and what comes of it.
            "events history json",
            "waits",
            "ask",
        ],
    },
    Order {
        folder: "crates/cli/src",
        lines: &[
            "main",
            "lib",
            "trace",
            "figures",
            "advise bench compare completions doctor explain horovodrun launch man search serve settings show simulate status topo training trees verify",
            "job parent token",
            "constants drawing machine topologies",
            "package",
            "chart chrome codecs failure html layout names numbers outcome progress table unique_json verbs",
        ],
    },
    Order {
        folder: "crates/capi/src",
        lines: &[
            "lib",
            "plain rabit",
            "calls options rabit_calls",
            "session",
            "registry",
            "pointers",
            "failure",
            "codes",
        ],
    },
    Order {
        folder: "crates/nccl-plugin/src",
        lines: &[
            "lib",
            "exports",
            // What the functions mean, how they end, and whose comms they get.
            "calls outcome",
            "registry",
            // How connections begin, and what they do.
            "accepting",
            "connecting",
            "receiving sending",
            "layout slots",
            "devices",
            "logger",
            "pointers",
            "failure wire",
        ],
    },
    Order {
        folder: "python/src",
        lines: &[
            "lib",
            "dependency device named shards",
            "communicator rabit",
            "tables",
            "optimizer",
            "call",
            "pending ps_lite residuals",
            "codecs errors files flight logging memory restarter store trees turn waiting",
        ],
    },
    Order {
        folder: "python/herringbone",
        lines: &[
            "__init__ __main__",
            "compare/__main__ profile/__main__ registration horovod/__init__ horovod/horovodrun",
            // The profile of a user's own model: a run, its hooks, what their moments mean, and the file.
            "profile/assembling",
            "profile/watch profile/options profile/script profile/summary",
            "profile/finding profile/steps",
            "profile/buckets profile/__init__",
            "profile/problems profile/reading",
            "profile/writing",
            "profile/document",
            // Architectures that are compared: the page, the processes, what a worker does.
            "compare/page",
            "compare/pictures",
            "compare/job compare/report compare/prediction",
            "compare/mortal compare/results compare/worker",
            "compare/architectures/averaged compare/architectures/scaled compare/architectures/served compare/architectures/sharded \
             compare/architectures/thresholded",
            "compare/architectures/summed",
            "compare/architectures/context compare/slowness compare/workloads",
            "compare/options",
            "compare/architectures/__init__ compare/__init__ compare/digits compare/files compare/folder \
             compare/namespaces compare/progress",
            "compare/ranges",
            // Horovod's interface: its launcher, its frameworks, and what these share.
            "horovod/runner",
            "horovod/launch",
            "horovod/called horovod/config horovod/flags horovod/processes",
            "horovod/hosts",
            "horovod/numpy/__init__ horovod/torch/__init__",
            "horovod/torch/elastic/__init__",
            "horovod/torch/elastic/state",
            "horovod/numpy/training horovod/torch/elastic/sampler horovod/torch/mpi_ops horovod/torch/optimizer \
             horovod/torch/sync_batch_norm",
            "horovod/torch/functions horovod/torch/passes horovod/torch/reductions",
            "horovod/numpy/operations horovod/torch/moves",
            "horovod/torch/compression horovod/torch/submission",
            "horovod/common/elastic horovod/common/interface",
            "horovod/common/membership",
            "horovod/common/basics",
            "horovod/common/barriers horovod/common/objects",
            "horovod/common/handles",
            "horovod/common/process_sets",
            "horovod/common/launched horovod/common/world",
            "horovod/common/__init__ horovod/common/calls horovod/common/exceptions horovod/common/operations \
             horovod/common/settings horovod/common/util",
            "torch/__init__ torchft",
            // Ways to train that do not sum at every step.
            "optim",
            "torch/replacing",
            "torch/compression_hooks torch/destroying torch/hooks torch/shards torch/timeline",
            "torch/communicators",
            "torch/group",
            "torch/mixing torch/saving",
            "torch/coalescing torch/dispatched",
            "torch/collectives",
            "torch/parts torch/sparse",
            "torch/batch torch/forming torch/memory torch/monitored torch/reconfiguring",
            "torch/member",
            "torch/local_forming",
            "torch/local_sums",
            "torch/local_flights",
            "torch/local_handles torch/local_steps",
            "embedding kvstore rabit",
            "tables",
            "elastic torch/rendezvous torch/rendezvous_server",
            "dependency hosts joining shards state torch/frames torch/handles torch/shards_step",
            "communicator torch/work",
            "collectives",
            "torch/corrector torch/futures torch/rearranged torch/shards_refused torch/shards_sums",
            "work",
            "extents plain torch/callbacks torch/calls torch/compressed torch/priorities torch/shards_loading torch/tensors",
            "arrays compression correction kinds options plain_kinds shards_data torch/devices torch/measured torch/shards_surroundings",
            "torch/lanes torch/local_groups torch/rails",
            "advice",
            "aliases arguments closing errors needs",
            "_herringbone listing names torch/streams unlike",
        ],
    },
];

#[test]
fn modules_import_downwards() {
    let sources = sources();
    let found = ORDERS.iter().flat_map(|order| order.broken_by(&sources)).collect();
    none("modules import only what stands below them in ORDERS, and never in a circle", found);
}

impl Order {
    /// All that is wrong in these files.
    fn broken_by(&self, sources: &[Source]) -> Vec<String> {
        let (modules, imports) = imports::of(self.folder, sources);
        let unlisted = modules.iter().filter(|module| self.place(module).is_none());
        let mut found: Vec<String> = unlisted
            .map(|module| format!("{}/{module} is new: say in ORDERS what may import it", self.folder))
            .collect();
        let places: BTreeSet<_> = modules.iter().filter_map(|module| self.place(module)).collect();
        let listed = self.lines.iter().flat_map(|line| line.split(' '));
        let stale = listed.filter(|entry| !places.iter().any(|(_, place)| place == entry));
        found.extend(stale.map(|entry| format!("{}/{entry} stands in ORDERS and is no more", self.folder)));
        found.extend(imports.iter().filter_map(|import| self.objection(import)));
        // Between places the order leaves no circles.
        let inside = |import: &&Import| self.place(&import.from) == self.place(&import.to);
        let in_circles = circles(&modules, imports.iter().filter(inside).collect());
        found.extend(in_circles.into_iter().map(|import| format!("{}: in a circle", show(import))));
        found
    }

    /// The number of a module's line and the entry in it that it falls under: of several the longest.
    fn place(&self, module: &str) -> Option<(usize, &'static str)> {
        let covers = |entry: &str| {
            module.strip_prefix(entry).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let entries = (0..)
            .zip(self.lines)
            .flat_map(|(number, line)| line.split(' ').map(move |entry| (number, entry)));
        entries.filter(|(_, entry)| covers(entry)).max_by_key(|(_, entry)| entry.len())
    }

    /// What is wrong with an import, if anything is.
    fn objection(&self, import: &Import) -> Option<String> {
        let (above, from) = self.place(&import.from)?;
        let (below, to) = self.place(&import.to)?;
        let how = match above.cmp(&below) {
            _ if from == to => return None,
            std::cmp::Ordering::Less => return None,
            std::cmp::Ordering::Equal => "beside",
            std::cmp::Ordering::Greater => "above",
        };
        Some(format!("{}: {to} stands {how} {from} in ORDERS", show(import)))
    }
}

fn show(Import { to, place, written, .. }: &Import) -> String {
    format!("{place} imports {to} (`{written}`)")
}

/// The imports that lie on circles, or on a way from one to the next: those that are left when modules that import
/// nothing, or that nothing imports, are taken away until there are none.
fn circles<'a>(modules: &BTreeSet<Module>, mut left: Vec<&'a Import>) -> Vec<&'a Import> {
    loop {
        let before = left.len();
        for module in modules {
            let (from, to) =
                (|import: &&Import| import.from == *module, |import: &&Import| import.to == *module);
            if !left.iter().any(from) || !left.iter().any(to) {
                left.retain(|import| !from(import) && !to(import));
            }
        }
        if left.len() == before {
            return left;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORDER: Order = Order { folder: "a", lines: &["lib", "top", "left right", "low low/lowest"] };

    /// What is wrong with a crate that has a module for each entry of [`ORDER`], with these texts in place of theirs.
    fn broken_by(planted: &[(&str, &str)]) -> Vec<String> {
        let usual =
            ["lib.rs", "top.rs", "left.rs", "right.rs", "low/mod.rs", "low/lowest.rs"].map(|path| (path, ""));
        let is_usual = |(path, _): &&(&str, &str)| planted.iter().all(|(other, _)| path != other);
        let files = usual.iter().filter(is_usual).chain(planted);
        let source =
            |(path, text): &(&str, &str)| Source { path: format!("a/{path}"), text: (*text).to_owned() };
        ORDER.broken_by(&files.map(source).collect::<Vec<_>>())
    }

    #[test]
    fn imports_downwards_are_fine() {
        let fine = [("top.rs", "use crate::{low::X, right::{Y, Z}};"), ("lib.rs", "mod top;\nuse top::T;")];
        assert_eq!(broken_by(&fine), [""; 0]);
    }

    #[test]
    fn an_import_upwards_is_found() {
        let planted = [("low/mod.rs", "\nuse crate::{\n    low::lowest,\n    top::T,\n};")];
        let side_by_side = "a/low/mod.rs:2 imports low/lowest (`crate::low::lowest`): low/lowest stands beside low in ORDERS";
        let upwards = "a/low/mod.rs:2 imports top (`crate::top::T`): top stands above low in ORDERS";
        assert_eq!(broken_by(&planted), [side_by_side, upwards]);
        let planted = [("right.rs", "fn f() -> super::left::L {}")];
        let found = "a/right.rs:1 imports left (`super::left::L`): left stands beside right in ORDERS";
        assert_eq!(broken_by(&planted), [found]);
    }

    #[test]
    fn a_circle_is_found_without_what_hangs_on_it() {
        let planted = [
            ("top.rs", "use crate::low::one;"),
            ("low/one.rs", "use super::two::X;"),
            ("low/two.rs", "use super::three::{Y, four::Z};"),
            ("low/three/mod.rs", "pub(crate) use four::Z;\nuse super::one::W;"),
            ("low/three/four.rs", ""),
        ];
        let found = [
            "a/low/one.rs:1 imports low/two (`super::two::X`): in a circle",
            "a/low/two.rs:1 imports low/three/mod (`super::three::Y`): in a circle",
            "a/low/three/mod.rs:2 imports low/one (`super::one::W`): in a circle",
        ];
        assert_eq!(broken_by(&planted), found);
    }

    #[test]
    fn modules_and_the_order_name_each_other() {
        let found = broken_by(&[("new.rs", ""), ("right.rs", "")]);
        assert_eq!(found, ["a/new is new: say in ORDERS what may import it"]);
        let order = Order { folder: "a", lines: &["lib gone"] };
        let lib = Source { path: "a/lib.rs".to_owned(), text: String::new() };
        assert_eq!(order.broken_by(&[lib]), ["a/gone stands in ORDERS and is no more"]);
    }
}
