//! How many reducers are worth their price: closed forms for buffers so large that only links count.
//!
//! With n workers behind ports of B bytes/s, k reducers behind ports of R and K bytes:
//!
//! * without reducers 2 (n-1)/n K/B (Patarasuk and Yuan, 2009);
//! * through reducers max(K/B, n K/(k R)) (Vertex AI's Reduction Server; Herring, SC 2020): from k = n B/R on more do not help;
//! * mixed: each worker folds a part g of the buffer and each reducer a part c, with n g + k c = 1. In the time t a
//!   worker's port carries (1-g) K + (n-1) g K = t B and a reducer's n c K = t R. For B = R these are BytePS's shares
//!   (OSDI 2020).

/// A job whose gradients are summed once in a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PricedJob {
    /// Workers' machines.
    pub workers: u32,
    /// Bytes/s of a worker's port, each way.
    pub worker_rate: f64,
    /// Bytes/s of a reducer's port, each way.
    pub reducer_rate: f64,
    /// Bytes that are summed in a step.
    pub bytes: f64,
    /// Seconds of computing in a step.
    pub computing: f64,
    /// The part of computing behind which communication can hide, from 0 to 1.
    pub hidden: f64,
    /// Per hour.
    pub worker_price: f64,
    /// Per hour.
    pub reducer_price: f64,
}

/// The best way to sum a buffer with a number of reducers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SummedBy {
    /// Among workers alone.
    Workers,
    /// Workers and reducers fold side by side.
    Mixed,
    /// Reducers fold all.
    Reducers,
}

impl SummedBy {
    /// The algorithm of that name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Workers => "radix",
            Self::Mixed => "mixed",
            Self::Reducers => "reduction_server",
        }
    }
}

/// A number of reducers and its consequences.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Offer {
    /// How many reducers.
    pub reducers: u32,
    /// The way of summing that takes the least time.
    pub summed_by: SummedBy,
    /// Seconds of communication in a step.
    pub communication: f64,
    /// Seconds of a step.
    pub step: f64,
    /// The price of a step.
    pub price: f64,
}

impl PricedJob {
    /// The consequences of this number of reducers.
    pub fn offer(&self, reducers: u32) -> Offer {
        let (n, k) = (f64::from(self.workers), f64::from(reducers));
        let (summed_by, communication) = self.least(n, k);
        let exposed = (communication - self.hidden * self.computing).max(0.0);
        let step = self.computing + exposed;
        let hourly = n * self.worker_price + k * self.reducer_price;
        Offer { reducers, summed_by, communication, step, price: hourly * step / 3600.0 }
    }

    fn least(&self, n: f64, k: f64) -> (SummedBy, f64) {
        let (one, all) = (self.bytes / self.worker_rate, self.bytes / self.reducer_rate);
        if n < 2.0 {
            return (SummedBy::Workers, 0.0);
        }
        let workers = (SummedBy::Workers, 2.0 * (n - 1.0) / n * one);
        if k == 0.0 {
            return workers;
        }
        let reducers = (SummedBy::Reducers, one.max(n / k * all));
        // g = (t B/K - 1)/(n - 2) and c = t R/(n K): n g + k c = 1 gives t.
        let mixed = match n > 2.0 {
            true => (1.0 + n / (n - 2.0)) / (n / (n - 2.0) / one + k / n / all),
            // Of two workers a port carries K whatever they share out.
            false => one.max((2.0 * all / k).min(one)),
        };
        let mixed = (SummedBy::Mixed, mixed.max(one));
        let less = |best: (SummedBy, f64), other: (SummedBy, f64)| {
            if other.1 < best.1 * (1.0 - 1e-9) { other } else { best }
        };
        less(less(workers, reducers), mixed)
    }

    /// From how many reducers on more do not help: as many as have the workers' rate together (Vertex AI's rule).
    pub fn enough(&self) -> u32 {
        let exact = f64::from(self.workers) * self.worker_rate / self.reducer_rate;
        // A whole number may come out a little above itself.
        let below = (exact - 1e-9).max(0.0) as u32;
        below.saturating_add(1)
    }

    /// Bytes/s that a worker's port, and one server's for all, would have to carry each way for communication to take no longer
    /// than computing.
    pub fn rates_to_keep_up(&self) -> (f64, f64) {
        let each = self.bytes / self.computing;
        (each, each * f64::from(self.workers))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GBIT: f64 = 125e6;

    /// The article's machines: 8 workers with 100 Gbit/s, reducers with 32.
    const VERTEX: PricedJob = PricedJob {
        workers: 8,
        worker_rate: 100.0 * GBIT,
        reducer_rate: 32.0 * GBIT,
        bytes: 1.3e9,
        computing: 0.9,
        hidden: 0.0,
        worker_price: 30.0,
        reducer_price: 0.6,
    };

    #[test]
    fn vertex_needs_25_reducers() {
        assert_eq!(VERTEX.enough(), 25);
        let [before, at, after] = [24, 25, 26].map(|reducers| VERTEX.offer(reducers).communication);
        assert!(at < before && (after - at).abs() < 1e-12, "{before} {at} {after}");
        assert_eq!(VERTEX.offer(25).summed_by, SummedBy::Reducers);
        assert!((at - 1.3e9 / (100.0 * GBIT)).abs() < 1e-12);
    }

    /// 61.5 M parameters, 0.25 s, 8 workers: the notes have both ways together, 15.7 and 125.9 Gbit/s.
    #[test]
    fn alexnet_needs_what_the_notes_say() {
        let alexnet = PricedJob { bytes: 61.5e6 * 4.0, computing: 0.25, ..VERTEX };
        let (worker, server) = alexnet.rates_to_keep_up();
        assert!((2.0 * worker * 8.0 / 1e9 - 15.7).abs() < 0.05, "{worker}");
        assert!((2.0 * server * 8.0 / 1e9 - 125.9).abs() < 0.06, "{server}");
    }

    #[test]
    fn mixed_is_byteps_optimum_where_all_ports_are_alike() {
        for (n, k) in [(4u32, 1u32), (4, 2), (4, 3), (16, 5), (3, 1), (64, 16)] {
            let job = PricedJob { workers: n, reducer_rate: VERTEX.worker_rate, ..VERTEX };
            let (n, k) = (f64::from(n), f64::from(k));
            let optimum = 2.0 * n * (n - 1.0) / (n * n + k * n - 2.0 * k) * job.bytes / job.worker_rate;
            let offer = job.offer(k as u32);
            assert_eq!(offer.summed_by, SummedBy::Mixed, "{n} {k}");
            assert!((offer.communication / optimum - 1.0).abs() < 1e-9, "{n} {k}: {offer:?} {optimum}");
        }
    }

    #[test]
    fn more_reducers_never_take_longer() {
        let mut last = f64::INFINITY;
        for reducers in 0..60 {
            let offer = VERTEX.offer(reducers);
            assert!(offer.communication <= last + 1e-12, "{offer:?}");
            last = offer.communication;
        }
        assert_eq!(PricedJob { workers: 1, ..VERTEX }.offer(0).communication, 0.0);
        assert_eq!(PricedJob { hidden: 1.0, ..VERTEX }.offer(0).step, 0.9);
    }
}
