//! Settings and parameters with anything in them.

use crate::any_text;
use herringbone_core::{
    group::FoldOrder,
    session::{FileText, Measuring, Parameters, PlanText, formation::Settings},
    topology::{LinkMatrix, Port, Ports, RoundTrips, Wiring},
};
use proptest::{collection::vec, option, prelude::*};

pub(crate) fn any_settings() -> impl Strategy<Value = Settings> {
    let names = (option::of(any_text()), option::of(any_text()), vec(any_text(), 0..4));
    (any::<u64>(), any::<u64>(), any::<u8>(), names, any::<u64>()).prop_map(
        |(staging, segment, order, (algorithm, transport, reducers), cutting)| Settings {
            staging,
            segment,
            order: FoldOrder::from_code(order),
            algorithm,
            transport,
            reducers,
            cutting,
            wiring: wiring(cutting),
            measuring: measuring(cutting),
            tree_bound: cutting.is_multiple_of(2).then_some(cutting),
            plan: ["all_reduce:0-64K:doubling".to_owned()][..usize::from(cutting.is_multiple_of(2))].to_vec(),
            calibration: (0..cutting % 3).collect(),
        },
    )
}

fn measuring(number: u64) -> Measuring {
    Measuring { at_start: number.is_multiple_of(5), while_running: number.is_multiple_of(7) }
}

/// Links, ports, both or neither.
fn wiring(number: u64) -> Wiring {
    let ranks = 1 + number as usize % 64;
    let ports = || Ports::uniform(ranks, Port { out: number | 1, into: number >> 1 });
    Wiring {
        links: number.is_multiple_of(3).then(|| LinkMatrix::uniform(ranks, 2.5)),
        ports: number.is_multiple_of(2).then(ports),
        round_trips: RoundTrips::of_numbers((0..number as u32 % 5).collect()).unwrap_or_default(),
    }
}

pub(crate) fn any_parameters() -> impl Strategy<Value = Parameters> {
    let names = (option::of(any_text()), option::of(any_text()), vec(any_text(), 0..4));
    (0_usize..2, names, any::<(u64, u64, u64)>()).prop_map(
        |(order, (algorithm, transport, reducers), (segment, staging, cutting))| Parameters {
            order: FoldOrder::ALL[order],
            algorithm,
            transport,
            segment,
            staging,
            reducers,
            cutting,
            wiring: wiring(cutting),
            measuring: measuring(cutting),
            tree_bound: cutting,
            plan: PlanText {
                rules: ["all_reduce:0-64K:doubling".to_owned()][..usize::from(cutting.is_multiple_of(2))]
                    .to_vec(),
                files: (0..cutting % 3)
                    .map(|at| FileText { text: "a\nb\n".repeat(at as usize), digest: at })
                    .collect(),
            },
            calibration: (0..cutting % 3).collect(),
        },
    )
}
