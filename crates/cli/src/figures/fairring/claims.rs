//! The article's sentences, and our numbers.

use super::{
    super::{
        figure::{ArticleClaim, How, Quantity},
        simulated::unusable,
    },
    inputs::FairringInputs,
    machines::rails,
    results::{BENCHED, EFFICIENCY, FairringPoint, FairringResults, at},
};
use crate::{failure::Failure, layout};
use herringbone::{
    Collective, FoldOrder,
    core::{
        algorithm::{Layout, cost::Cost},
        verify::verify,
    },
    parse_algorithm,
};

/// Why Fairring's training is slower here.
const ONE_BY_ONE: &str = "Here a GPU's thread sends and receives one message at a time, so every slice pays for all of its messages. \
                          Fairring's transfers run concurrently in TensorPipe.";
/// Why Fairring is faster here on few machines and with small tensors.
const ALIKE: &str = "Here a message costs both libraries the same. The article does not give the extra cost of a Fairring transfer over an NCCL hop.";

/// All claims, in the order of the article.
///
/// # Errors
/// If a schedule has no form for as many GPUs.
pub(super) fn claims(
    inputs: &FairringInputs,
    results: &FairringResults,
) -> Result<Vec<ArticleClaim>, Failure> {
    let mut claims = counted(inputs)?;
    claims.extend(training(results));
    claims.push(of_google());
    claims.extend(single(inputs, results));
    claims.extend(parallel(inputs, results));
    claims.extend(scaling(results));
    Ok(claims)
}

/// The baseline of the constant, or that it cannot be reached.
pub(super) fn fitted_to(results: &FairringResults) -> String {
    let found = results.efficiency(16).nccl;
    match (found - EFFICIENCY).abs() < 0.01 {
        true => format!("NCCL's efficiency at 16 GPUs is {:.0} %", 100.0 * EFFICIENCY),
        false => format!(
            "NCCL's efficiency at 16 GPUs is {:.0} %, the nearest to {:.0} % at any cost",
            100.0 * found,
            100.0 * EFFICIENCY
        ),
    }
}

/// Counted in schedules.
fn counted(inputs: &FairringInputs) -> Result<Vec<ArticleClaim>, Failure> {
    let rails = |gpus| cost(inputs, gpus, &rails(inputs.gpus, gpus / inputs.gpus));
    let (few, many) = (rails(16)?, rails(inputs.most_gpus)?);
    let inside = 2.0 * f64::from(inputs.gpus - 1) / f64::from(inputs.gpus);
    let outside = |cost: &Cost| f64::from(cost.worker.sent.count()) / f64::from(cost.chunks) - inside;
    let ring = cost(inputs, 64, "ring")?.rounds;
    let bytes = f64::from(inputs.buckets) * inputs.slice() as f64;
    Ok(vec![
        ArticleClaim::new(
            "A ring needs as many successive rounds as there are GPUs, here 64",
            Quantity::of(64.0, "rounds"),
            Quantity::of(f64::from(ring), "rounds"),
            How::Formula,
        )
        .because("A reduce-scatter and an all-gather take N-1 rounds each; the article gives only the order of magnitude."),
        ArticleClaim::new(
            "The number of steps of Fairring is constant as machines are added",
            Quantity::words("constant"),
            Quantity::words(if few.rounds == many.rounds { "constant" } else { "not constant" }),
            How::Formula,
        )
        .because(format!("{} rounds on 16 GPUs, {} on {}.", few.rounds, many.rounds, inputs.most_gpus)),
        ArticleClaim::new(
            "What each GPU sends is constant as machines are added",
            Quantity::words("constant"),
            Quantity::words(format!("from {:.3} K to {:.3} K", outside(&few), outside(&many))),
            How::Formula,
        )
        .because(
            "A GPU sends 2(M-1)/M K/D of K bytes to other machines, because one of M shards stays: twice as much on many machines as on two.",
        ),
        ArticleClaim::new("64 buckets of 25 MiB are 1.6 GB", Quantity::of(1.6, "GB"), Quantity::of(bytes / 1e9, "GB"), How::Formula)
            .because("64 times 25 MiB are 1.678 GB, or 1.5625 GiB. Other inputs have other buckets."),
    ])
}

/// What a schedule that is proved costs.
fn cost(inputs: &FairringInputs, gpus: u32, name: &str) -> Result<Cost, Failure> {
    let hosts = layout::hosts(gpus, inputs.gpus);
    let group = FoldOrder::Ranks.group(&hosts, &[]);
    let layout = Layout { reducers: 0, hosts: &hosts, links: None };
    let algorithm = parse_algorithm(name).map_err(unusable)?;
    let schedule = algorithm.schedule(Collective::AllReduce, &group, &layout).map_err(unusable)?;
    Ok(verify(schedule, Collective::AllReduce, &group).map_err(unusable)?.cost())
}

fn percent(value: f64) -> Quantity {
    Quantity::of(100.0 * value, "%")
}

/// By how much Fairring is faster at a point.
fn gain(points: &[FairringPoint], place: u32) -> f64 {
    at(points, place).time.gain()
}

/// Faster or slower, by how much.
fn words(gain: f64) -> String {
    let percent = 100.0 * gain;
    if gain >= 0.0 { format!("{percent:.1} % faster") } else { format!("{:.1} % slower", -percent) }
}

/// The points of a curve at these numbers of GPUs, with Fairring's gain.
fn gains(points: &[FairringPoint], gpus: &[u32]) -> Vec<GainAt> {
    let found = points.iter().filter(|point| gpus.contains(&point.at));
    found.map(|point| GainAt { gpus: point.at, gain: point.time.gain() }).collect()
}

/// By how much Fairring is faster on this many GPUs.
struct GainAt {
    gpus: u32,
    gain: f64,
}

/// The gains in words.
fn listed(gains: &[GainAt]) -> String {
    let one = |GainAt { gpus, gain }: &GainAt| format!("{} on {gpus} GPUs", words(*gain));
    gains.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// A claim that Fairring is slower on each of these GPUs; nothing if the curve has none of them.
fn slower(said: &str, points: &[FairringPoint], gpus: &[u32], why: &str) -> Option<ArticleClaim> {
    let found = gains(points, gpus);
    let slower = found.iter().filter(|at| at.gain < 0.0).count();
    let ours = match slower {
        0 => "faster",
        all if all == found.len() => "slower",
        _ => "slower, but not everywhere",
    };
    let claim = ArticleClaim::new(said, Quantity::words("slower"), Quantity::words(ours), How::Predicted);
    (!found.is_empty()).then(|| claim.because(format!("Ours is {}. {why}", listed(&found))))
}

/// A claim that Fairring is faster on each of these GPUs; nothing if the curve has none of them.
fn faster(said: &str, points: &[FairringPoint], gpus: &[u32]) -> Option<ArticleClaim> {
    let found = gains(points, gpus);
    let ours = if found.iter().all(|at| at.gain > 0.0) { "faster" } else { "not everywhere faster" };
    let claim = ArticleClaim::new(said, Quantity::words("faster"), Quantity::words(ours), How::Predicted);
    (!found.is_empty()).then(|| claim.because(format!("Ours is {}.", listed(&found))))
}

/// The training from end to end.
fn training(results: &FairringResults) -> Vec<ArticleClaim> {
    let efficiency = |gpus| results.efficiency(gpus);
    let best = results.steps[1..].iter().map(|point| efficiency(point.at).nccl).fold(0.0, f64::max);
    let how = if results.is_fitted { How::Fitted } else { How::Predicted };
    let predicted = |said: &str, seed, ours| {
        ArticleClaim::new(said, percent(seed), percent(ours), How::Predicted).if_it_differs(ONE_BY_ONE)
    };
    let implied = |said: &str, seed, ours| {
        ArticleClaim::new(said, percent(seed), percent(ours), How::Predicted).because(
            "The article does not define the baseline of efficiency. If each library has its own 8 GPUs as baseline, where Fairring is slower, NCCL's efficiency is lower.",
        )
    };
    let steps = &results.steps;
    let numbers = [
        ArticleClaim::new(
            "NCCL's highest scaling efficiency is 68 %, at 16 GPUs",
            percent(EFFICIENCY),
            percent(best),
            how,
        )
        .if_it_differs("The constant has another value, or no cost of a message reaches this."),
        predicted("Fairring's throughput is 52.86 % higher than NCCL's at 32 GPUs", 0.5286, gain(steps, 32)),
        predicted("Fairring's throughput is 42.82 % higher than NCCL's at 64 GPUs", 0.4282, gain(steps, 64)),
        predicted("Fairring's scaling efficiency at 32 GPUs is 90 %", 0.90, efficiency(32).fairring),
        predicted("Fairring's scaling efficiency at 64 GPUs is 72 %", 0.72, efficiency(64).fairring),
        implied(
            "By these numbers NCCL's efficiency at 32 GPUs is 90 % / 1.5286",
            0.90 / 1.5286,
            efficiency(32).nccl,
        ),
        implied(
            "By these numbers NCCL's efficiency at 64 GPUs is 72 % / 1.4282",
            0.72 / 1.4282,
            efficiency(64).nccl,
        ),
    ];
    let words = [
        slower("Fairring underperforms NCCL on 8 to 16 GPUs", steps, &[8, 16], ALIKE),
        slower(
            "Past 128 GPUs Fairring fails to scale like NCCL",
            steps,
            &[128, 256],
            "Shards become small, and the cost per message outweighs their bytes. NCCL's ring also slows down, until its trees are faster.",
        ),
    ];
    numbers.into_iter().chain(words.into_iter().flatten()).collect()
}

/// A quotation of Google's article.
fn of_google() -> ArticleClaim {
    ArticleClaim::new(
        "Google's BERT went from 0.4 to 0.7 words per second on 8 A100s",
        Quantity::words("words per second, 8 GPUs"),
        Quantity::words("steps per second, 64 GPUs"),
        How::Formula,
    )
    .because(
        "An error in the article: Google's article has steps per second, and eight hosts with 8 GPUs each.",
    )
}

/// One tensor on 8 machines.
fn single(inputs: &FairringInputs, results: &FairringResults) -> Vec<ArticleClaim> {
    let (until, first) = results.sides();
    let mib = |mib: Option<u32>| {
        mib.map_or_else(|| Quantity::words("at no size"), |mib| Quantity::of(f64::from(mib), "MiB"))
    };
    vec![
        ArticleClaim::new("On 8 machines NCCL is faster for tensors up to about 6 MiB", mib(Some(6)), mib(until), How::Predicted)
            .if_it_differs(ALIKE),
        ArticleClaim::new("Fairring is faster for tensors of 25 MiB or more", mib(Some(25)), mib(first), How::Predicted)
            .if_it_differs("The article has no sizes between 6 and 25 MiB. Ours is the smallest size from which Fairring stays faster."),
        ArticleClaim::new("At 100 MiB Fairring is 43 % faster", percent(0.43), percent(gain(&results.sizes, 100)), How::Predicted)
            .if_it_differs(format!(
                "{} No cost of a message increases that, because both pay it. The article does not explain why NCCL does not reach the rate of the cards.",
                by_bytes(inputs)
            )),
    ]
}

/// What Fairring gains on 8 machines where nothing but bytes costs time.
fn by_bytes(inputs: &FairringInputs) -> String {
    let (machines, gpus) = (f64::from(BENCHED), f64::from(BENCHED * inputs.gpus));
    let gain = (1.0 - 1.0 / gpus) / (1.0 - 1.0 / machines) - 1.0;
    format!(
        "By bytes alone it gains {:.1} %: a machine's cards carry 2(M-1)/M K, and 2(N-1)/N K in the ring.",
        100.0 * gain
    )
}

/// Slices in flight.
fn parallel(inputs: &FairringInputs, results: &FairringResults) -> Vec<ArticleClaim> {
    let FairringInputs { buckets, slice_mib, .. } = inputs;
    let gpus = BENCHED * inputs.gpus;
    let (best, faster) = (results.best_in_flight(), gain(&results.in_flight, 4));
    let busy = match best {
        1 => {
            "The messages of one slice keep the thread of a GPU busy all the time, so a second slice hides nothing; with cheaper messages it would."
        }
        _ => "With that many, cards or threads are busy all the time.",
    };
    let why = match faster > 0.5 {
        true => format!(
            "Our ring of {gpus} GPUs pays for a message in each of {} rounds, and these costs outweigh the bytes.",
            2 * (gpus - 1)
        ),
        false => by_bytes(inputs),
    };
    vec![
        ArticleClaim::new(
            format!(
                "With {buckets} buckets of {slice_mib} MiB, 4 in flight or slightly more are the sweet spot"
            ),
            Quantity::of(4.0, "in flight"),
            Quantity::of(f64::from(best), "in flight"),
            How::Predicted,
        )
        .if_it_differs(format!("Ours is the smallest number within 5 % of the best. {busy}")),
        ArticleClaim::new(
            "There Fairring is around 50 % faster than NCCL",
            percent(0.5),
            percent(faster),
            How::Predicted,
        )
        .if_it_differs(why),
    ]
}

/// Numbers of machines.
fn scaling(results: &FairringResults) -> Vec<ArticleClaim> {
    let all: Vec<u32> = results.scaling.iter().map(|point| point.at).collect();
    let all = gains(&results.scaling, &all);
    let peak =
        all.iter().max_by(|one, other| one.gain.total_cmp(&other.gain)).expect("there are numbers of GPUs");
    let large = gains(&results.grown, &[64, 128, 256]);
    let is_ahead = large.iter().all(|at| at.gain > 0.0);
    let claims = [
        slower(
            "On a single machine, of 8 GPUs, Fairring is slower",
            &results.scaling,
            &[8],
            "Ours omits that even there Fairring sends gradients to its own server and copies them into staging memory.",
        ),
        faster("On 2 and 4 machines it is already faster", &results.scaling, &[16, 32]),
        Some(
            ArticleClaim::new(
                "At its peak Fairring is 2 times as fast as NCCL",
                Quantity::of(2.0, "times"),
                Quantity::of(1.0 + peak.gain, "times"),
                How::Predicted,
            )
            .if_it_differs(format!("Our peak is on {} GPUs. {ALIKE}", peak.gpus)),
        ),
        slower(
            "Fairring's performance declines and is worse than NCCL's for 256 GPUs",
            &results.scaling,
            &[256],
            &format!(
                "Our peak is {}. With that many GPUs NCCL uses trees, whose messages cost as much.",
                words(peak.gain)
            ),
        ),
        Some(
            ArticleClaim::new(
                "Buckets of 25 MiB on 8 machines, 50 on 16 and 100 on 32 keep Fairring ahead at large scales",
                Quantity::words("ahead"),
                Quantity::words(if is_ahead { "ahead" } else { "not ahead" }),
                How::Predicted,
            )
            .because(format!("Ours is {}.", listed(&large))),
        ),
    ];
    claims.into_iter().flatten().collect()
}
